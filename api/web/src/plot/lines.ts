/** The arithmetic of curves in columns: ranges, smoothing, which run is near the cursor. Pure. */

export interface Line {
  id: string;
  label: string;
  /** Which colour and which dashes of the palette. */
  look: Look;
  /** Rising; as long as `ys`. */
  xs: Float64Array;
  /** NaN where the value is not a number. */
  ys: Float64Array;
  /** A value holds until the next one: drawn as stairs. */
  holds?: boolean;
}

export interface Look {
  colour: number;
  dash: number;
}

export type Range = readonly [number, number];

export interface Near {
  line: Line;
  at: number;
}

/** Bias-corrected exponential moving average; weight 0 changes nothing, what is not a number stays. */
export function smoothed(ys: Float64Array, weight: number): Float64Array {
  if (weight <= 0) return ys;
  let [sum, mass] = [0, 0];
  return ys.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}

/** The x range of all points; null where there are none. */
export function xRange(lines: readonly Line[]): Range | null {
  let [low, high] = [Infinity, -Infinity];
  for (const { xs } of lines) {
    low = Math.min(low, xs[0] ?? Infinity);
    high = Math.max(high, xs.at(-1) ?? -Infinity);
  }
  if (low > high) return null;
  return low < high ? [low, high] : [low - 0.5, high + 0.5];
}

/** The y range, with air, of the points inside an x range that can be drawn; null where there are none.
    `zero`: down to 0 where all are above. */
export function yRange(lines: readonly Line[], x: Range, log: boolean, zero = false): Range | null {
  let [low, high] = [Infinity, -Infinity];
  for (const { xs, ys } of lines) {
    for (let at = indexFrom(xs, x[0]); at < xs.length && (xs[at] ?? Infinity) <= x[1]; at++) {
      const value = ys[at] ?? NaN;
      if (!drawable(value, log)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return null;
  if (log) return low === high ? [low / 2, high * 2] : [low * 0.9, high * 1.12];
  if (zero && low >= 0) return [0, high * 1.08 || 1];
  const air = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - air, high + air];
}

/** The range with a share of the height left free below, where strips are. */
export function raised([low, high]: Range, share: number, log: boolean): Range {
  if (log) return [low / (high / low) ** (share / (1 - share)), high];
  return [low - ((high - low) * share) / (1 - share), high];
}

export function drawable(value: number, log: boolean): boolean {
  return Number.isFinite(value) && (!log || value > 0);
}

/** Points that a logarithmic scale cannot show. */
export function belowLog(lines: readonly Line[]): number {
  return lines.reduce((all, { ys }) => all + ys.reduce((some, value) => some + (value <= 0 ? 1 : 0), 0), 0);
}

/** The first index whose x is not below `x`. */
export function indexFrom(xs: Float64Array, x: number): number {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((xs[middle] ?? Infinity) < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The index whose x is nearest. */
export function nearestIndex(xs: Float64Array, x: number): number {
  const right = indexFrom(xs, x);
  if (right === 0) return 0;
  if (right === xs.length) return right - 1;
  return x - (xs[right - 1] ?? 0) <= (xs[right] ?? 0) - x ? right - 1 : right;
}

/** The runs with a value at `x`, nearest to `y` first, at most `most`; `pixel` is where a value lies. */
export function nearestRuns(
  lines: readonly Line[],
  x: number,
  y: number,
  pixel: (value: number) => number,
  most: number,
): Near[] {
  const found = lines.flatMap((line): (Near & { away: number })[] => {
    const { xs, ys } = line;
    // A run that ended before, or begins later, has no value here.
    if (xs.length === 0 || x < (xs[0] ?? 0) - slack(xs) || x > (xs.at(-1) ?? 0) + slack(xs)) return [];
    const at = nearestIndex(xs, x);
    const away = Math.abs(pixel(ys[at] ?? NaN) - y);
    return Number.isFinite(away) ? [{ line, at, away }] : [];
  });
  return found.sort((a, b) => a.away - b.away).slice(0, most);
}

/** Where an arrow key moves the cursor from `near`: along x by a hundredth of the points, or to the next run up or down. */
export function keyed(
  key: string,
  near: readonly Near[],
  range: Range,
  pixel: (value: number) => number,
): { x: number; top: number } | null {
  const now = near[0];
  if (now === undefined) return null;
  const { xs, ys } = now.line;
  const [first, last] = [indexFrom(xs, range[0]), Math.max(0, indexFrom(xs, range[1] * (1 + 1e-12)) - 1)];
  const stride = Math.max(1, Math.round((last - first) / 100));
  const along: Record<string, number> = { ArrowLeft: now.at - stride, ArrowRight: now.at + stride, Home: first, End: last };
  const to = along[key];
  if (to !== undefined) {
    const at = Math.min(last, Math.max(first, to));
    const top = pixel(ys[at] ?? NaN);
    return { x: xs[at] ?? 0, top: Number.isFinite(top) ? top : pixel(ys[now.at] ?? NaN) };
  }
  const byHeight = near.map(({ line, at }) => pixel(line.ys[at] ?? NaN)).sort((a, b) => a - b);
  const place = byHeight.indexOf(pixel(ys[now.at] ?? NaN));
  const other = { ArrowUp: byHeight[place - 1], ArrowDown: byHeight[place + 1] }[key];
  return other === undefined ? null : { x: xs[now.at] ?? 0, top: other };
}

/** Half of the usual distance between two points. */
function slack(xs: Float64Array): number {
  return xs.length > 1 ? ((xs.at(-1) ?? 0) - (xs[0] ?? 0)) / (xs.length - 1) / 2 : Infinity;
}
