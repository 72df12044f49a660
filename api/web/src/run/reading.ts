/** What the charts of a job read: its curves, their newest points while it runs, and a stretch that is zoomed in to. */
import { keepPreviousData, skipToken, useQuery } from "@tanstack/react-query";
import { curves, metricNames, system } from "../api";
import { every } from "../cache";
import { listOf } from "../lists";
import { asked, type AxisName } from "../plot/curves";
import type { Range } from "../plot/lines";
import { pointsEach } from "../plot/view";
import type { Comparison, Curve, SystemSeries } from "../wire";
import { followed, newestOf } from "./system";

const LIVE_MS = 400;
const STRETCH_MS = 5000;
/** A sample is taken every five seconds. */
const SYSTEM_MS = 2500;
const SYSTEM_WHOLE_MS = 120_000;
const ENDED_MS = 20_000;
/** The whole is read anew that often while a job runs: it is thinned again. */
const WHOLE_MS = 20_000;
/** Steps before the newest one whose points may still come, those of another metric among them. */
const LATE_STEPS = 20;

export interface JobCurves {
  curves: ReadonlyMap<string, Curve>;
  /** When all of it was read at once, in milliseconds. */
  wholeAt: number;
}

/** Curves are long, and made lines of by whoever draws them: comparing two answers value by value gains nothing. */
const AS_THEY_COME = { structuralSharing: false } as const;

export function useCurves(id: string, wanted: readonly string[], live: boolean) {
  const names = listOf(wanted);
  return useQuery({
    ...AS_THEY_COME,
    queryKey: ["jobs", id, "curves", names, live],
    queryFn: async ({ client, queryKey, signal }): Promise<JobCurves> => {
      const query = { jobs: id, names, max_points: pointsEach(1, wanted.length) };
      const known = client.getQueryData<JobCurves>(queryKey);
      const now = Date.now();
      if (known === undefined || !live || now - known.wholeAt >= WHOLE_MS) {
        return { curves: byName(await curves(query, signal)), wholeAt: now };
      }
      const from = tailFrom(known);
      return grown(known, from, await curves({ ...query, from }, signal));
    },
    placeholderData: keepPreviousData,
    refetchInterval: every(live ? LIVE_MS : ENDED_MS),
  });
}

/** The curves in the stretch that is zoomed in to, with points of their own; undefined without zoom. */
export function useStretch(id: string, wanted: readonly string[], axis: AxisName, zoom: Range | null, sizes: readonly number[], live: boolean) {
  const names = listOf(wanted);
  return useQuery({
    ...AS_THEY_COME,
    queryKey: ["jobs", id, "stretch", names, axis, zoom, sizes],
    queryFn:
      zoom === null
        ? skipToken
        : async ({ signal }) =>
            byName(await curves({ jobs: id, names, max_points: pointsEach(1, wanted.length), ...asked(axis, zoom, sizes) }, signal)),
    refetchInterval: live && every(STRETCH_MS),
  });
}

export interface JobSystem {
  series: readonly SystemSeries[];
  /** When all of it was read at once, in milliseconds. */
  wholeAt: number;
}

/** What the workers and nodes of a job use: all of it, or a stretch of time with points of its own. */
export function useSystem(id: string, zoom: Range | null, live: boolean) {
  return useQuery({
    ...AS_THEY_COME,
    queryKey: ["jobs", id, "system", zoom, live],
    queryFn: async ({ client, queryKey, signal }): Promise<JobSystem> => {
      const known = client.getQueryData<JobSystem>(queryKey);
      const now = Date.now();
      if (zoom !== null) return { series: await system(id, { from: zoom[0], to: zoom[1] }, signal), wholeAt: now };
      if (known === undefined || !live || now - known.wholeAt >= SYSTEM_WHOLE_MS) {
        return { series: await system(id, {}, signal), wholeAt: now };
      }
      return { ...known, series: followed(known.series, await system(id, { from: newestOf(known.series) }, signal)) };
    },
    placeholderData: keepPreviousData,
    refetchInterval: live && every(SYSTEM_MS),
  });
}

export function useMetricNames(id: string, live: boolean) {
  return useQuery({
    queryKey: ["jobs", id, "names"],
    queryFn: ({ signal }) => metricNames(id, signal),
    refetchInterval: live && every(STRETCH_MS),
  });
}

/** The step from which to ask for what is new. */
export function tailFrom({ curves: known }: JobCurves): number {
  const newest = [...known.values()].reduce((most, { steps }) => Math.max(most, steps.at(-1) ?? 0), 0);
  return Math.max(0, newest - LATE_STEPS);
}

/** What is known with the points of an answer from this step on in place of its own; itself where nothing is new. */
export function grown(known: JobCurves, from: number, answer: Comparison): JobCurves {
  let changed = false;
  const all = new Map(known.curves);
  for (const [name, curve] of byName(answer)) {
    const before = all.get(name);
    const kept = before?.steps.findIndex((step) => step >= from) ?? 0;
    const cut = kept < 0 ? (before?.steps.length ?? 0) : kept;
    if (before?.steps.at(-1) === curve.steps.at(-1) && (before?.steps.length ?? 0) - cut >= curve.steps.length) continue;
    changed = true;
    all.set(name, {
      ...curve,
      steps: [...(before?.steps.slice(0, cut) ?? []), ...curve.steps],
      times: [...(before?.times.slice(0, cut) ?? []), ...curve.times],
      values: [...(before?.values.slice(0, cut) ?? []), ...curve.values],
    });
  }
  return changed ? { ...known, curves: all } : known;
}

function byName({ curves: all }: Comparison): Map<string, Curve> {
  return new Map(all.map((one) => [one.name, one]));
}
