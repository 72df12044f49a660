/** The page around every view: brand, navigation, log out. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { logout, toLogin } from "../api";
import icon from "../icon.svg";

export function Frame({ children }: { children: ReactNode }) {
  const leave = (): void =>
    void logout()
      .catch(() => undefined)
      .then(toLogin);
  return (
    <>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <header className="bar">
        <Link to="/jobs" className="brand" activeOptions={{ exact: true }}>
          <img src={icon} alt="" width="24" height="24" />
          Ringleader
        </Link>
        <nav aria-label="Main">
          <Link to="/jobs">Jobs</Link>
          <Link to="/compare">Compare</Link>
          <Link to="/sweeps">Sweeps</Link>
          <Link to="/cluster">Cluster</Link>
          <Link to="/submit" search={{ from: undefined }}>
            Submit
          </Link>
          <Link to="/alerts">Alerts</Link>
          <Link to="/access">Access</Link>
          <a href="/guide/" target="_blank" rel="noreferrer">
            Guide<span aria-hidden="true"> ↗</span>
          </a>
          <a href="/mlflow/" target="_blank" rel="noreferrer">
            MLflow<span aria-hidden="true"> ↗</span>
          </a>
        </nav>
        <button type="button" className="quiet" onClick={leave}>
          Log out
        </button>
      </header>
      <main id="main">{children}</main>
    </>
  );
}
