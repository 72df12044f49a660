/** Which view an address shows. A view that is not the first one comes when it is asked for. */
import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Link,
  Navigate,
  Outlet,
  useLocation,
  type RouterHistory,
} from "@tanstack/react-router";
import type { ReactNode } from "react";
import { parseQuery, queryText } from "./address";
import { alertsAsked } from "./alerts";
import { askedOf } from "./jobs/asked";
import { Frame } from "./parts/Frame";
import { Empty } from "./parts/Notice";
import { begunWith } from "./submit/begun";
import { orderOf } from "./sweeps/order";
import { JobsView } from "./views/JobsView";

const root = createRootRoute({ component: Around, notFoundComponent: Unknown });

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  validateSearch: askedOf,
  component: function Home() {
    return <Navigate to="/jobs" search={home.useSearch()} replace />;
  },
});

const jobs = createRoute({
  getParentRoute: () => root,
  path: "/jobs",
  validateSearch: askedOf,
  component: function Jobs() {
    return <JobsView asked={jobs.useSearch()} />;
  },
});

const JobView = lazyRouteComponent(() => import("./views/JobView"), "JobView");

const job = createRoute({
  getParentRoute: () => root,
  path: "/jobs/$id",
  component: loading(JobView, function OneJob() {
    const { id } = job.useParams();
    return <JobView key={id} id={id} query={useLocation({ select: (at) => at.searchStr })} />;
  }),
});

const CompareView = lazyRouteComponent(() => import("./views/CompareView"), "CompareView");

const compare = createRoute({
  getParentRoute: () => root,
  path: "/compare",
  component: loading(CompareView, function Compare() {
    return <CompareView query={useLocation({ select: (at) => at.searchStr })} />;
  }),
});

const sweeps = createRoute({
  getParentRoute: () => root,
  path: "/sweeps",
  component: lazyRouteComponent(() => import("./views/SweepsView"), "SweepsView"),
});

const SweepView = lazyRouteComponent(() => import("./views/SweepView"), "SweepView");

const sweep = createRoute({
  getParentRoute: () => root,
  path: "/sweeps/$id",
  validateSearch: orderOf,
  component: loading(SweepView, function OneSweep() {
    const { id } = sweep.useParams();
    return <SweepView key={id} id={id} order={sweep.useSearch()} />;
  }),
});
const SubmitView = lazyRouteComponent(() => import("./views/SubmitView"), "SubmitView");

const submit = createRoute({
  getParentRoute: () => root,
  path: "/submit",
  validateSearch: begunWith,
  component: loading(SubmitView, function Submit() {
    const { from, begin } = submit.useSearch();
    return <SubmitView key={`${from} ${begin}`} from={from} begin={begin} />;
  }),
});

const cluster = createRoute({
  getParentRoute: () => root,
  path: "/cluster",
  component: lazyRouteComponent(() => import("./views/ClusterView"), "ClusterView"),
});

const access = createRoute({
  getParentRoute: () => root,
  path: "/access",
  component: lazyRouteComponent(() => import("./views/AccessView"), "AccessView"),
});

const AlertsView = lazyRouteComponent(() => import("./views/AlertsView"), "AlertsView");

const alerts = createRoute({
  getParentRoute: () => root,
  path: "/alerts",
  validateSearch: alertsAsked,
  component: loading(AlertsView, function Alerts() {
    return <AlertsView asked={alerts.useSearch()} />;
  }),
});

export function newRouter(history?: RouterHistory) {
  return createRouter({
    routeTree: root.addChildren([home, jobs, job, compare, sweeps, sweep, cluster, submit, alerts, access]),
    ...(history && { history }),
    parseSearch: parseQuery,
    stringifySearch: queryText,
    scrollRestoration: true,
    defaultPreload: "intent",
    trailingSlash: "never",
  });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof newRouter>;
  }
}

/** A component that shows this view: the router has the view loaded before it leaves the page that one sees. What is drawn
    without it React would show 300 ms later, behind a fallback. */
function loading(view: { preload?: () => Promise<void> | undefined }, shows: () => ReactNode) {
  return Object.assign(shows, { preload: () => view.preload?.() });
}

function Around() {
  return (
    <Frame>
      <Outlet />
    </Frame>
  );
}

function Unknown() {
  return (
    <Empty title="This page does not exist">
      <p>
        <Link to="/jobs">See all jobs</Link>
      </p>
    </Empty>
  );
}
