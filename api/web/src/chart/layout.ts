/** Where everything of the stacked charts lies: one x axis, a lane of marks on top, one panel a metric. */
import { linear, log, spread, type Point, type Scale } from "./scale";

export interface Series {
  name: string;
  label: string;
  unit: string;
  /** The unit of exactly 1, where that is another word. */
  unitOfOne: string;
  points: readonly Point[];
  shape: "line" | "stairs";
  height: number;
  zero: boolean;
  log: boolean;
  whole: boolean;
  smoothing: number;
}

/** The unit behind a value: "1 worker", "2 workers". */
export function unitOf(series: Series, value: number | undefined): string {
  return value === 1 ? series.unitOfOne : series.unit;
}

export interface Panel {
  series: Series;
  top: number;
  bottom: number;
  y: Scale;
}

export interface Layout {
  width: number;
  height: number;
  left: number;
  right: number;
  lane: number;
  bottom: number;
  x: Scale;
  panels: Panel[];
}

const LANE = 26;
const TITLE = 24;
const GAP = 8;
const AXIS = 38;
const RIGHT = 14;

/** Lay out `series` in `width` pixels; `marks` are steps that must lie inside the x axis too. */
export function layout(
  series: readonly Series[],
  width: number,
  marks: readonly number[],
  zoom: readonly [number, number] | null,
): Layout {
  const left = width < 520 ? 44 : 60;
  const right = Math.max(left + 10, width - RIGHT);
  const x = linear(zoom ?? stepRange(series, marks), [left, right]);
  let top = LANE;
  const panels = series.map((one): Panel => {
    const plotTop = top + TITLE;
    const bottom = plotTop + one.height;
    top = bottom + GAP;
    return { series: one, top: plotTop, bottom, y: yScale(one, x, [bottom, plotTop]) };
  });
  const bottom = top - GAP;
  return { width, height: bottom + AXIS, left, right, lane: LANE, bottom, x, panels };
}

/** The points inside the axis and one on either side, so that lines run to the edge. */
export function shown<T extends Point>(points: readonly T[], [low, high]: readonly [number, number]): T[] {
  const first = points.findIndex((point) => point.step >= low);
  if (first < 0) return points.slice(-1);
  const after = points.findIndex((point, at) => at >= first && point.step > high);
  return points.slice(Math.max(0, first - 1), after < 0 ? points.length : after + 1);
}

function stepRange(series: readonly Series[], marks: readonly number[]): [number, number] {
  const steps = [...series.flatMap((one) => one.points.map((point) => point.step)), ...marks];
  if (steps.length === 0) return [0, 1];
  const low = steps.reduce((least, step) => Math.min(least, step));
  const high = steps.reduce((most, step) => Math.max(most, step));
  return high > low ? [low, high] : [low, low + 1];
}

function yScale(series: Series, x: Scale, range: [number, number]): Scale {
  const inside = series.points.filter((point) => point.step >= x.domain[0] && point.step <= x.domain[1]);
  const values = (inside.length > 0 ? inside : series.points).map((point) => point.value);
  const useLog = series.log && values.some((value) => value > 0);
  const domain = spread(values, { zero: series.zero, log: useLog });
  return useLog ? log(domain, range) : linear(domain, range);
}
