/** What the address of a job's page says of its charts, and changing it. */
import { useNavigate } from "@tanstack/react-router";
import { useCallback } from "react";
import { parseQuery } from "../address";
import { plural } from "../format";
import { listed, listOf } from "../lists";
import type { Range } from "../plot/lines";
import { ignoredOf, parseView, queryOf, viewParts, type ChartView } from "../plot/view";
import { USUAL } from "./looks";

/** As many as are read at once beside those that the page reads for itself. */
export const MOST_CHARTS = 16;

export function parseRun(query: string): ChartView {
  return parseView(new URLSearchParams(query), USUAL, MOST_CHARTS);
}

/** The query of a view, without what is as it would be anyway; `parseRun` reads it back. */
export function formatRun(view: ChartView): string {
  const usual = listOf(view.names) === listOf(USUAL);
  return queryOf(viewParts(view).filter(([key]) => !(usual && key === "names")));
}

/** What the reader of a link should know: what of its query the page of a run does not show. */
export function leftOut(query: string): string[] {
  const of = new URLSearchParams(query);
  const ignored = ignoredOf(of, formatRun(parseRun(query)), { axis: "step" }, ["names"]);
  const surplus = listed(of.get("names")).length - MOST_CHARTS;
  return [
    ...(surplus > 0 ? [`Left out: ${plural(surplus, "more metric")}; at most ${MOST_CHARTS} are shown at once.`] : []),
    ...(ignored.length > 0 ? [`Left out, because no page of a run has it: ${ignored.join(", ")}.`] : []),
  ];
}

/** The stretch in Unix seconds, where it is one of time. */
export function timeOf({ axis, zoom }: ChartView, startedAt: string | null): Range | null {
  if (zoom === null || (axis !== "wall" && axis !== "relative")) return null;
  const since = axis === "wall" ? 0 : Date.parse(startedAt ?? "") / 1000;
  return Number.isFinite(since) ? [zoom[0] + since, zoom[1] + since] : null;
}

/** The charts with this one moved by so many places. */
export function moved(names: readonly string[], name: string, by: number): string[] {
  const rest = names.filter((one) => one !== name);
  const to = Math.min(rest.length, Math.max(0, names.indexOf(name) + by));
  return [...rest.slice(0, to), name, ...rest.slice(to)];
}

/** Changes a part of the view that the address has now. */
export function useRunChange(id: string): (part: Partial<ChartView>) => void {
  const navigate = useNavigate();
  return useCallback(
    (part) => {
      const search = parseQuery(formatRun({ ...parseRun(window.location.search), ...part }));
      void navigate({ to: "/jobs/$id", params: { id }, search, replace: true, resetScroll: false });
    },
    [navigate, id],
  );
}
