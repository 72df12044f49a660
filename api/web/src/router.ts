/** The address bar: which view a path shows, and moving between them without a reload. */
import { useSyncExternalStore } from "react";

export type Route = { view: "jobs" } | { view: "job"; id: string } | { view: "submit" } | { view: "access" } | { view: "unknown" };

export function routeOf(path: string): Route {
  const clean = path.replace(/\/+$/, "") || "/";
  if (clean === "/" || clean === "/jobs") return { view: "jobs" };
  if (clean === "/submit") return { view: "submit" };
  if (clean === "/access") return { view: "access" };
  const id = /^\/jobs\/([^/]+)$/.exec(clean)?.[1];
  return id === undefined ? { view: "unknown" } : { view: "job", id: decoded(id) };
}

/** Leave for the log-in form, which the API serves itself: nothing of this page is public. */
export function toLogin(): void {
  const { pathname, search } = window.location;
  window.location.assign(`/login?next=${encodeURIComponent(pathname + search)}`);
}

export function navigate(to: string, how: "push" | "replace" = "push"): void {
  if (how === "push") window.history.pushState(null, "", to);
  else window.history.replaceState(null, "", to);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

export function useLocation(): { path: string; query: string } {
  const at = useSyncExternalStore(listen, () => window.location.pathname + window.location.search);
  const cut = at.indexOf("?");
  return cut < 0 ? { path: at, query: "" } : { path: at.slice(0, cut), query: at.slice(cut) };
}

function listen(changed: () => void): () => void {
  window.addEventListener("popstate", changed);
  return () => window.removeEventListener("popstate", changed);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
