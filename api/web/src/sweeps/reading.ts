/** What the views of sweeps read, again while something may change. */
import { useQuery } from "@tanstack/react-query";
import { sweep, sweeps, trials } from "../api";
import { every } from "../cache";
import type { SweepState } from "../wire";

const LIVE_MS = 2000;
const ENDED_MS = 15_000;

export function useSweeps() {
  return useQuery({ queryKey: ["sweeps"], queryFn: ({ signal }) => sweeps(signal), refetchInterval: every(LIVE_MS) });
}

export function useSweep(id: string) {
  return useQuery({
    queryKey: ["sweeps", id],
    queryFn: ({ signal }) => sweep(id, signal),
    refetchInterval: (query) => every(sweepEnded(query.state.data?.state) ? ENDED_MS : LIVE_MS)(query),
  });
}

export function useTrials(id: string, state: SweepState) {
  return useQuery({
    queryKey: ["sweeps", id, "trials"],
    queryFn: ({ signal }) => trials(id, signal),
    refetchInterval: every(sweepEnded(state) ? ENDED_MS : LIVE_MS),
  });
}

export function sweepEnded(state: SweepState | undefined): boolean {
  return state !== undefined && state !== "running" && state !== "paused";
}
