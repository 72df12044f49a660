/** The axes of a line plot: what x counts, the places of its marks and their words. */
import type uPlot from "uplot";
import { clock, count, duration, full, number } from "../format";
import type { Theme } from "./palette";

/** What x counts: steps, rows, Unix seconds, seconds since the start. */
export interface XKind {
  unit: "count" | "time" | "duration";
  label: string;
}

const DURATIONS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
const FINE_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
const DAYS_S = [2, 5, 10, 20, 50, 100].map((days) => days * 86_400);

/** x in words, as the cursor says it. */
export function xWords({ unit, label }: XKind, x: number): string {
  if (unit === "time") return `${full(new Date(x * 1000).toISOString())} (${clock(new Date(x * 1000).toISOString())})`;
  if (unit === "duration") return `${duration(Math.max(0, x))} after the start`;
  return `${label} ${count(x)}`;
}

/** What y counts: whole things have no marks between them. */
export interface YKind {
  log: boolean;
  whole: boolean;
}

/** The room beside a plot in a width: for the words of y, and for half of the last one of x. */
export function sidesOf(width: number): { left: number; right: number } {
  return { left: width < 520 ? 44 : 58, right: 28 };
}

export function axesOf(kind: XKind, y: YKind, theme: Theme, width: number): uPlot.Axis[] {
  const shared = {
    stroke: theme.muted,
    font: "11px system-ui, sans-serif",
    grid: { stroke: theme.line, width: 1 },
    ticks: { show: false },
  };
  const x: uPlot.Axis = { ...shared, scale: "x", size: 26, gap: 4, space: 84, grid: { show: false } };
  if (kind.unit === "count") {
    x.incrs = WHOLE;
    x.values = (_, marks) => marks.map((mark) => count(mark));
  } else if (kind.unit === "time") {
    x.values = (_, marks, __, ___, every) => marks.map((mark) => timeWords(mark, every));
  } else {
    x.incrs = [...FINE_S, ...DURATIONS_S, ...DAYS_S];
    x.values = (_, marks) => marks.map((mark) => (mark === 0 ? "0" : duration(mark)));
  }
  const up: uPlot.Axis = {
    ...shared,
    scale: "y",
    size: sidesOf(width).left,
    gap: 5,
    space: 36,
    ...(y.whole && !y.log && { incrs: WHOLE }),
    // uPlot gives null for the marks of a logarithmic scale that it leaves without words.
    values: (_, marks: (number | null)[]) => marks.map((mark) => (mark === null ? "" : number(mark))),
  };
  return [x, up];
}

/** A mark of the time axis: the date where a day begins, else the time as exact as the marks are apart. */
export function timeWords(mark: number, every: number): string {
  const at = new Date(mark * 1000);
  const midnight = at.getHours() + at.getMinutes() + at.getSeconds() === 0;
  if (midnight || every >= 86_400) return at.toLocaleDateString("en-US", { month: "short", day: "numeric" });
  return clock(at.toISOString()).slice(0, every < 1 ? 12 : every < 60 ? 8 : 5);
}

/** Round values inside [low, high], about `target` of them, at 1, 2, 2.5 or 5 times a power of ten. */
export function ticks(low: number, high: number, target: number): number[] {
  if (!(high > low) || target < 1) return [low];
  const step = niceStep((high - low) / target);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, turn) => Number(((first + turn) * step).toPrecision(12)));
}

/** Values inside [low, high] at powers of ten, or at 1, 2 and 5 times these where there are fewer than two; `target` at most. */
export function logTicks(low: number, high: number, target: number): number[] {
  const powers = Array.from({ length: Math.floor(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, turn) => Math.floor(Math.log10(low)) + turn);
  const at = (factors: readonly number[]): number[] =>
    powers.flatMap((power) => factors.map((factor) => Number(`${factor}e${power}`))).filter((value) => value >= low && value <= high);
  const tens = at([1]);
  const all = tens.length > 1 ? tens : at([1, 2, 5]);
  const every = Math.max(1, Math.ceil(all.length / Math.max(1, target)));
  return all.filter((_, turn) => turn % every === 0);
}

/** Marks from 0 to so many seconds, about `target` of them, at times as people count them. */
export function durationTicks(seconds: number, target: number): number[] {
  const all = [...FINE_S, ...DURATIONS_S, ...DAYS_S];
  const every = all.find((one) => one >= seconds / target) ?? seconds;
  return Array.from({ length: Math.floor(seconds / every) + 1 }, (_, turn) => turn * every);
}

function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  const share = rough / power;
  return (share <= 1 ? 1 : share <= 2 ? 2 : share <= 2.5 ? 2.5 : share <= 5 ? 5 : 10) * power;
}

const POWERS = Array.from({ length: 13 }, (_, power) => 10 ** power);
const WHOLE = [1, 2, 5].flatMap((one) => POWERS.map((power) => one * power)).sort((a, b) => a - b);
