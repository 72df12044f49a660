/** What the address of the compare view says: which runs, and how their charts are shown. Pure. */
import { listed, listOf } from "../lists";
import { drawnParts, ignoredOf, parseView, queryOf, viewParts, type ChartView } from "../plot/view";

/** The limits of `GET /curves`. */
export const MAX_JOBS = 100;
export const MAX_NAMES = 24;

export interface CompareState extends ChartView {
  jobs: readonly string[];
  baseline: string | null;
  strips: boolean;
  /** The run that stands out. */
  run: string | null;
  /** The axes of the scatter. */
  scatter: readonly [string, string];
}

/** The state, how many jobs and metrics beyond the limits were left away, and what else of the query was. */
export interface Parsed {
  state: CompareState;
  ignored: readonly string[];
  surplus: { jobs: number; names: number };
}

export function parseCompare(query: string): Parsed {
  const of = new URLSearchParams(query);
  const jobs = listed(of.get("jobs"));
  const state = {
    ...parseView(of, ["loss"], MAX_NAMES),
    jobs: jobs.slice(0, MAX_JOBS),
    baseline: listed(of.get("baseline"))[0] ?? null,
    strips: of.get("strips") === "1",
    run: listed(of.get("run"))[0] ?? null,
    scatter: [of.get("x") ?? "", of.get("y") ?? ""] as const,
  };
  return {
    state,
    ignored: ignoredOf(of, formatCompare(state), { axis: "step", strips: "0" }, ["jobs", "names"]),
    surplus: {
      jobs: Math.max(0, jobs.length - MAX_JOBS),
      names: Math.max(0, listed(of.get("names")).length - MAX_NAMES),
    },
  };
}

/** The query of a state, without what is as it would be anyway; `parseCompare` reads it back. */
export function formatCompare(state: CompareState): string {
  const { jobs, baseline, strips, run, scatter } = state;
  const [x, y] = scatter;
  const own: [string, string | null][] = [["baseline", baseline], ["strips", strips ? "1" : null], ["run", run], ["x", x], ["y", y]];
  return queryOf([["jobs", jobs.join(",")], ...viewParts(state), ...own]);
}

/** The query of a report on these runs by these metrics, as they are drawn. */
export function reportQuery(state: CompareState): string {
  return queryOf([["jobs", state.jobs.join(",")], ["names", listOf(state.names)], ...drawnParts(state, [])]);
}
