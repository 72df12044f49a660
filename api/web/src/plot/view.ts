/** What an address says of charts: which metrics in which order, by which axis, in which stretch, each drawn how. Pure. */
import { listed, listOf } from "../lists";
import { asked, AXES, type AxisName } from "./curves";
import type { Range } from "./lines";

export interface ChartView {
  /** The metrics that are shown, in their order. */
  names: readonly string[];
  axis: AxisName;
  /** The stretch of the x axis, in its own unit. */
  zoom: Range | null;
  /** The metrics drawn on a logarithmic scale. */
  log: readonly string[];
  /** The weight of the moving average, of the metrics that have one. */
  smoothing: Readonly<Record<string, number>>;
}

/** The view of a query: at most `most` metrics, and `usual` where it names none. */
export function parseView(of: URLSearchParams, usual: readonly string[], most: number): ChartView {
  const named = listed(of.get("names"));
  const names = (named.length > 0 ? named : usual).slice(0, most);
  return {
    names,
    axis: AXES.find((one) => one === of.get("axis")) ?? "step",
    zoom: stretch(of.get("from"), of.get("to")),
    log: listed(of.get("log")).filter((name) => names.includes(name)),
    smoothing: weights(listed(of.get("smooth")), names),
  };
}

/** The keys of a view and their text, without what is as it would be anyway; `parseView` reads them back. */
export function viewParts(view: ChartView): [string, string | null][] {
  const smoothing = view.names.flatMap((name) => {
    const weight = view.smoothing[name];
    return weight ? [`${name}:${weight}`] : [];
  });
  return [
    ["names", listOf(view.names)],
    ["axis", view.axis === "step" ? null : view.axis],
    ["from", view.zoom && String(view.zoom[0])],
    ["to", view.zoom && String(view.zoom[1])],
    ["log", listOf(view.log.filter((name) => view.names.includes(name)))],
    ["smooth", listOf(smoothing)],
  ];
}

/** What a report on these charts is asked for, which knows no axis of rows: of a stretch of rows the steps of these batch sizes. */
export function drawnParts({ axis, zoom }: Pick<ChartView, "axis" | "zoom">, sizes: readonly number[]): [string, string | null][] {
  const known = axis !== "rows" || sizes.length > 0;
  const stretch = zoom && known ? asked(axis, zoom, sizes) : null;
  return [
    ["axis", axis === "wall" || axis === "relative" ? axis : null],
    ["from", stretch && String(stretch.from)],
    ["to", stretch && String(stretch.to)],
  ];
}

/** A query of these parts; what is null or empty is left out. */
export function queryOf(parts: readonly (readonly [string, string | null])[]): string {
  const query = new URLSearchParams();
  for (const [key, text] of parts) if (text) query.set(key, text);
  // Commas and colons may stand in a query as they are: a link stays legible.
  const text = query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  return text ? `?${text}` : "";
}

/** The parts of a query that a view does not have, whose own query is `formatted`; not those said to be `usual`, nor of the keys `besides`. */
export function ignoredOf(of: URLSearchParams, formatted: string, usual: Readonly<Record<string, string>>, besides: readonly string[]): string[] {
  const kept = new URLSearchParams(formatted);
  const ignored = Array.from(of).filter(([key, text]) => {
    if (!text.trim() || usual[key] === text || besides.includes(key)) return false;
    // A number may be written in another way.
    if (key === "from" || key === "to") return !kept.has(key);
    return listed(text).some((part) => !listed(kept.get(key)).includes(part));
  });
  return ignored.map(([key, text]) => `${key}=${text}`);
}

/** How many points of each curve to ask for: as many as are drawn, within the limit of an answer. */
export function pointsEach(jobs: number, names: number): number {
  const values = 250_000;
  return Math.max(4, Math.min(jobs > 20 ? 500 : 1000, Math.floor(values / Math.max(1, jobs * names))));
}

function stretch(from: string | null, to: string | null): Range | null {
  if (!from?.trim() || !to?.trim()) return null;
  const [low, high] = [Number(from), Number(to)];
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? [low, high] : null;
}

function weights(parts: readonly string[], names: readonly string[]): Record<string, number> {
  const all = parts.map((part): [string, number] => {
    // The last one: a metric's own name may hold a colon.
    const cut = part.lastIndexOf(":");
    return [part.slice(0, cut), Number(part.slice(cut + 1))];
  });
  return Object.fromEntries(all.filter(([name, weight]) => names.includes(name) && weight > 0 && weight < 1));
}
