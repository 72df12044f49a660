/** What the compare view reads: curves at once, then the job files and events of the runs it found. */
import { skipToken, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { curves, feedPage, job, jobPath, metricNames } from "../api";
import { recoveries, type Recovery } from "../history";
import { listed, listOf } from "../lists";
import { asked, batchesOf, sizesOf } from "../plot/curves";
import type { Range } from "../plot/lines";
import { pointsEach } from "../plot/view";
import { hasEnded, type Job, type JobEvent } from "../wire";
import type { Files } from "./runs";
import type { CompareState } from "./state";

const LIVE_MS = 5000;
/** Requests at once: a browser keeps so many connections to a server. */
const AT_ONCE = 6;
const EVENTS_A_PAGE = 1000;
const MOST_PAGES = 10;

/** Curves are long, and made lines of by whoever draws them: comparing two answers value by value gains nothing. */
const AS_THEY_COME = { structuralSharing: false } as const;

/** The curves in full length. */
export function useWhole(state: CompareState) {
  const jobs = state.jobs.join(",");
  const names = asNames(state);
  return useQuery({
    ...AS_THEY_COME,
    queryKey: ["curves", jobs, names],
    queryFn:
      jobs === "" ? skipToken : ({ signal }) => curves({ jobs, names, max_points: points(jobs, names) }, signal),
    refetchInterval: ({ state: { data } }) => data?.jobs.some((one) => !hasEnded(one.state)) === true && LIVE_MS,
  });
}

/** The curves in the stretch that is zoomed in to, with points of their own; null without zoom. */
export function useStretch(state: CompareState, zoom: Range | null, files: Files | undefined) {
  const jobs = state.jobs.join(",");
  const names = asNames(state);
  const { axis } = state;
  const sizes = useMemo(
    () => [...(axis === "rows" ? (files ?? []) : [])].flatMap(([, one]) => sizesOf(batchesOf(one))),
    [axis, files],
  );
  const unknown = axis === "rows" && files === undefined;
  return useQuery({
    ...AS_THEY_COME,
    queryKey: ["curves", jobs, names, axis, zoom, sizes],
    queryFn:
      zoom === null || unknown
        ? skipToken
        : ({ signal }) => curves({ jobs, names, max_points: points(jobs, names), ...asked(axis, zoom, sizes) }, signal),
  });
}

/** The jobs with their files; those that cannot be read are missing. */
export function useFiles(ids: readonly string[]) {
  const key = ids.join(",");
  return useQuery({
    queryKey: ["files", key],
    queryFn: async ({ signal }): Promise<Files> => {
      const found = await pooled(split(key), (id) => job(id, signal).catch(() => null));
      signal.throwIfAborted();
      return new Map(found.filter((one): one is Job => one !== null).map((one) => [one.id, one]));
    },
  });
}

/** The recoveries of each of these runs, by its id. */
export function useRecoveries(ids: readonly string[]) {
  const key = ids.join(",");
  return useQuery({
    queryKey: ["recoveries", key],
    queryFn: async ({ signal }): Promise<ReadonlyMap<string, Recovery[]>> => {
      const all = await pooled(split(key), async (id): Promise<[string, Recovery[]]> => [id, recoveries(await events(id, signal))]);
      return new Map(all);
    },
  });
}

/** The names of metrics to choose from: those of the first few runs. */
export function useNames(ids: readonly string[]) {
  const key = ids.slice(0, 3).join(",");
  return useQuery({
    queryKey: ["names", key],
    queryFn: async ({ signal }) => {
      const all = await pooled(split(key), (id) => metricNames(id, signal));
      return [...new Set(all.flat())].sort();
    },
  });
}

/** As text: a new list in every render would be a new question. */
function asNames({ names, strips }: CompareState): string {
  return listOf(strips && !names.includes("world_size") ? [...names, "world_size"] : names);
}

function points(jobs: string, names: string): number {
  return pointsEach(split(jobs).length, listed(names).length);
}

async function events(id: string, signal: AbortSignal): Promise<JobEvent[]> {
  const found: JobEvent[] = [];
  let after: number | string | null = 0;
  for (let page = 0; page < MOST_PAGES && after !== null; page++) {
    const { items, next }: { items: JobEvent[]; next: number | string | null } = await feedPage<JobEvent>(
      `${jobPath(id)}/events`,
      Number(after),
      EVENTS_A_PAGE,
      signal,
    );
    found.push(...items);
    after = next;
  }
  return found;
}

/** The answers in the order of `ids`, a few requests at a time. */
async function pooled<T>(ids: readonly string[], ask: (id: string) => Promise<T>): Promise<T[]> {
  const answers: T[] = [];
  const left = [...ids.entries()];
  const work = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) answers[next[0]] = await ask(next[1]);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return answers;
}

function split(key: string): string[] {
  return key === "" ? [] : key.split(",");
}
