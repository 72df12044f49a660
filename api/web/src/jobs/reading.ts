/** Reading the job list: page after page, all of them again and again, and the curves of the jobs on each. */
import { keepPreviousData, useInfiniteQuery, useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { curves as readCurves, facets as readFacets, jobGroups as readGroups, jobs as readJobs } from "../api";
import { every } from "../cache";
import { listOf } from "../lists";
import { hasEnded, type Curve, type Job, type JobPage } from "../wire";
import { groupQuery, listQuery, type Asked } from "./asked";

const PAGE = 50;
const EVERY_MS = 1500;
const GROUPS_MS = 15_000;
const CURVES_MS = 5000;
const POINTS = 36;
const NO_JOBS: readonly Job[] = [];

export function useJobs(asked: Asked) {
  const query = listQuery(asked);
  const read = useInfiniteQuery({
    queryKey: ["jobs", "list", query],
    queryFn: ({ pageParam, signal }) => readJobs({ ...query, cursor: pageParam, limit: PAGE }, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next_cursor,
    placeholderData: keepPreviousData,
    // All pages are read again, each from where the one before it ends now: none has a gap before it. The more there
    // are, the longer until the next time.
    refetchInterval: (query) => every(EVERY_MS * (query.state.data?.pages.length ?? 1))(query),
  });
  const pages = read.data?.pages;
  const jobs = useMemo(() => (pages ? once(pages) : NO_JOBS), [pages]);
  return { ...read, jobs };
}

/** The groups of the jobs; undefined while they are not known. */
export function useGroups(asked: Asked) {
  const query = groupQuery(asked);
  return useQuery({
    queryKey: ["jobs", "groups", query],
    queryFn: ({ signal }) => readGroups(query ?? { by: "" }, signal),
    enabled: query !== null,
    placeholderData: keepPreviousData,
    refetchInterval: every(GROUPS_MS),
  });
}

/** The jobs of all pages, each once: one that moved while they were read may be on two. */
export function once(pages: readonly JobPage[]): readonly Job[] {
  const known = new Map<string, Job>();
  for (const job of pages.flatMap((page) => page.items)) if (!known.has(job.id)) known.set(job.id, job);
  return [...known.values()];
}

/** What the jobs can be filtered by and shown with, read when it is wanted. */
export function useFacets(wanted: boolean) {
  return useQuery({
    queryKey: ["facets"],
    queryFn: ({ signal }) => readFacets(signal),
    enabled: wanted,
    staleTime: 10_000,
  }).data;
}

/** The curves of these metrics; `curve` finds one by its job and name. */
export function useCurves(jobs: readonly Job[], names: readonly string[]) {
  const pages = useMemo(() => (names.length > 0 ? batches(jobs) : []), [jobs, names]);
  const found = useQueries({
    queries: pages.map((page) => ({
      queryKey: ["curves", names, page.map((job) => job.id)],
      queryFn: async ({ signal }: { signal: AbortSignal }) =>
        (await readCurves({ jobs: page.map((job) => job.id).join(","), names: listOf(names), max_points: POINTS }, signal)).curves,
      refetchInterval: page.every((job) => hasEnded(job.state)) ? false : every(CURVES_MS),
      placeholderData: keepPreviousData,
    })),
    combine: (all) => all.flatMap((one): Curve[] => one.data ?? []),
  });
  return useMemo(() => {
    const known = new Map(found.map((one) => [`${one.job} ${one.name}`, one]));
    return (job: string, name: string): Curve | undefined => known.get(`${job} ${name}`);
  }, [found]);
}

function batches(jobs: readonly Job[]): Job[][] {
  return Array.from({ length: Math.ceil(jobs.length / PAGE) }, (_, at) => jobs.slice(at * PAGE, (at + 1) * PAGE));
}
