/** Changing the compare view: its state is the address, and nowhere else. */
import { useNavigate } from "@tanstack/react-router";
import { useCallback } from "react";
import { parseQuery } from "../address";
import { formatCompare, parseCompare, type CompareState } from "./state";

/** Changes a part of the state that the address has now. */
export function useChange(): (part: Partial<CompareState>) => void {
  const go = useGo();
  return useCallback((part) => go(part, true), [go]);
}

export function useCompareJobs(): (jobs: readonly string[]) => void {
  const go = useGo();
  return useCallback((jobs) => go({ jobs, zoom: null }, false), [go]);
}

function useGo(): (part: Partial<CompareState>, replace: boolean) => void {
  const navigate = useNavigate();
  return useCallback(
    (part, replace) => {
      const { state } = parseCompare(window.location.search);
      void navigate({ to: "/compare", search: parseQuery(formatCompare({ ...state, ...part })), replace });
    },
    [navigate],
  );
}
