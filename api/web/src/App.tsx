/** Which view the address shows, and the way to the log-in form when a credential is missing. */
import { useEffect } from "react";
import { whenUnauthorized } from "./api";
import { Frame, Link } from "./parts/Frame";
import { Empty } from "./parts/Notice";
import { routeOf, toLogin, useLocation } from "./router";
import { AccessView } from "./views/AccessView";
import { JobsView } from "./views/JobsView";
import { JobView } from "./views/JobView";
import { SubmitView } from "./views/SubmitView";

export function App() {
  const { path, query } = useLocation();
  useEffect(() => whenUnauthorized(toLogin), []);
  const route = routeOf(path);
  return (
    <Frame path={path}>
      {route.view === "jobs" && <JobsView query={query} />}
      {route.view === "job" && <JobView key={route.id} id={route.id} />}
      {route.view === "submit" && <SubmitView />}
      {route.view === "access" && <AccessView />}
      {route.view === "unknown" && (
        <Empty title="This page does not exist">
          <p>
            <Link to="/">See all jobs</Link>
          </p>
        </Empty>
      )}
    </Frame>
  );
}
