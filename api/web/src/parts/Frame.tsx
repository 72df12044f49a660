/** The page around every view: brand, navigation, log out. */
import type { MouseEvent, ReactNode } from "react";
import { logout } from "../api";
import icon from "../icon.svg";
import { navigate, toLogin } from "../router";

export function Frame({ path, children }: { path: string; children: ReactNode }) {
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
        <Link to="/" className="brand">
          <img src={icon} alt="" width="24" height="24" />
          Ringleader
        </Link>
        <nav aria-label="Main">
          <Link to="/" current={path === "/" || path.startsWith("/jobs")}>
            Jobs
          </Link>
          <Link to="/submit" current={path === "/submit"}>
            Submit
          </Link>
          <Link to="/access" current={path === "/access"}>
            Access
          </Link>
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

interface LinkProps {
  to: string;
  children: ReactNode;
  className?: string;
  current?: boolean;
}

/** A link inside the page; the browser keeps its own ways (new tab, middle click). */
export function Link({ to, children, className, current }: LinkProps) {
  const go = (event: MouseEvent): void => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to);
    window.scrollTo(0, 0);
  };
  return (
    <a href={to} onClick={go} className={className} aria-current={current ? "page" : undefined}>
      {children}
    </a>
  );
}
