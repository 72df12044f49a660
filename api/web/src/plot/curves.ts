/** From curves as the API gives them to lines by an axis: steps, rows, time of day, time since the start. Pure. */
import type { Curve, Job } from "../wire";
import type { XKind } from "./axes";
import type { Range } from "./lines";

export const AXES = ["step", "rows", "wall", "relative"] as const;
export type AxisName = (typeof AXES)[number];

export const KINDS: Record<AxisName, XKind> = {
  step: { unit: "count", label: "Step" },
  rows: { unit: "count", label: "Row" },
  wall: { unit: "time", label: "Time" },
  relative: { unit: "duration", label: "Time since the start" },
};

/** The batch sizes of a job file: that of the first step, and others behind so many steps. */
export interface Batches {
  size: number;
  schedule: readonly (readonly [number, number])[];
}

/** What turns a job's steps and times into an x: its batches, and when it started in Unix seconds. */
export interface Clock {
  startedAt: number | null;
  batches: Batches | null;
}

/** Null where the job file says nothing of rows. */
export function batchesOf(job: Pick<Job, "spec"> | undefined): Batches | null {
  const batch = job?.spec.batch as { global_size?: unknown; schedule?: Batches["schedule"] } | null | undefined;
  const size = batch?.global_size;
  return typeof size === "number" && size > 0 ? { size, schedule: batch?.schedule ?? [] } : null;
}

/** All batch sizes that come. */
export function sizesOf(batches: Batches | null): number[] {
  return batches ? [batches.size, ...batches.schedule.map(([, rows]) => rows)] : [];
}

/** The rows of all steps up to this one; the last batch of an epoch counts as a whole one. */
export function rowsAt(step: number, { size, schedule }: Batches): number {
  let [rows, now, from] = [0, size, 0];
  for (const [at, next] of schedule) {
    if (at >= step) break;
    rows += (at - from) * now;
    [now, from] = [next, at];
  }
  return rows + (step - from) * now;
}

/** Null where the axis has no place for them. */
export function xsOf(curve: Pick<Curve, "steps" | "times">, axis: AxisName, { startedAt, batches }: Clock): Float64Array | null {
  if (axis === "step") return Float64Array.from(curve.steps);
  if (axis === "wall") return Float64Array.from(curve.times);
  if (axis === "rows") return batches === null ? null : Float64Array.from(curve.steps, (step) => rowsAt(step, batches));
  return startedAt === null ? null : Float64Array.from(curve.times, (time) => time - startedAt);
}

/** The points of a curve by an axis; null where it has none there. */
export function pointsOf(curve: Curve, axis: AxisName, clock: Clock): { xs: Float64Array; ys: Float64Array } | null {
  const xs = xsOf(curve, axis, clock);
  return xs === null || xs.length === 0 ? null : rising(xs, Float64Array.from(curve.values, (value) => value ?? NaN));
}

/** What to ask the API for, which knows no axis of rows: the stretch of steps that is wide enough for every batch size. */
export function asked(axis: AxisName, zoom: Range, sizes: readonly number[]): { axis: string; from: number; to: number } {
  const [low, high] = zoom;
  if (axis !== "rows") return { axis, from: low, to: high };
  const [least, most] = [Math.min(...sizes, Infinity), Math.max(...sizes, 0)];
  if (most === 0) return { axis: "step", from: 0, to: 0 };
  return { axis: "step", from: Math.floor(low / most), to: Math.ceil(high / least) };
}

/** In order of x: steps that ran again after a loss have later times than those behind them. */
function rising(xs: Float64Array, ys: Float64Array): { xs: Float64Array; ys: Float64Array } {
  if (xs.every((x, at) => at === 0 || x >= (xs[at - 1] ?? 0))) return { xs, ys };
  const order = Array.from(xs.keys()).sort((a, b) => (xs[a] ?? 0) - (xs[b] ?? 0));
  return { xs: Float64Array.from(order, (at) => xs[at] ?? 0), ys: Float64Array.from(order, (at) => ys[at] ?? NaN) };
}
