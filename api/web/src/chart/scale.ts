/** The arithmetic of a chart: scales, ticks, smoothing, paths. Pure. */

export interface Scale {
  domain: readonly [number, number];
  at: (value: number) => number;
  back: (pixel: number) => number;
}

export interface Point {
  step: number;
  value: number;
}

export function linear(domain: readonly [number, number], range: readonly [number, number]): Scale {
  const [low, high] = domain;
  const width = high - low || 1;
  const [from, to] = range;
  return {
    domain,
    at: (value) => from + ((value - low) / width) * (to - from),
    back: (pixel) => low + ((pixel - from) / (to - from || 1)) * width,
  };
}

/** Base-10 logarithmic; the domain must be above zero. */
export function log(domain: readonly [number, number], range: readonly [number, number]): Scale {
  const inner = linear([Math.log10(domain[0]), Math.log10(domain[1])], range);
  return { domain, at: (value) => inner.at(Math.log10(value)), back: (pixel) => 10 ** inner.back(pixel) };
}

/** Round values inside [low, high], about `target` of them, at 1, 2, 2.5 or 5 times a power of ten. */
export function ticks(low: number, high: number, target: number): number[] {
  if (!(high > low) || target < 1) return [low];
  const step = niceStep((high - low) / target);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, turn) =>
    Number(((first + turn) * step).toPrecision(12)),
  );
}

/** Whole numbers only: for steps and workers. */
export function wholeTicks(low: number, high: number, target: number): number[] {
  const [first, last] = [Math.ceil(low), Math.floor(high)];
  if (last - first <= target)
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, turn) => first + turn);
  return ticks(low, high, target).filter(Number.isInteger);
}

/** Powers of ten, with 2 and 5 between them where the domain is short. */
export function logTicks(low: number, high: number): number[] {
  const from = Math.floor(Math.log10(low));
  const to = Math.ceil(Math.log10(high));
  const factors = to - from <= 1 ? [1, 2, 3, 5] : to - from <= 3 ? [1, 3] : [1];
  const all = Array.from({ length: to - from + 1 }, (_, turn) =>
    factors.map((factor) => factor * 10 ** (from + turn)),
  );
  return all.flat().filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

/** The values' range with air above and below; whole and from zero where asked. */
export function spread(
  values: readonly number[],
  options: { zero?: boolean; log?: boolean } = {},
): [number, number] {
  const finite = values.filter((value) => Number.isFinite(value) && (!options.log || value > 0));
  if (finite.length === 0) return options.log ? [0.1, 1] : [0, 1];
  const low = finite.reduce((least, value) => Math.min(least, value));
  const high = finite.reduce((most, value) => Math.max(most, value));
  if (options.log) return low === high ? [low / 2, high * 2] : [low * 0.9, high * 1.12];
  const air = (high - low || Math.abs(high) || 1) * 0.08;
  if (options.zero) return [Math.min(0, low), high + (high === 0 ? 1 : air)];
  return [low - air, high + air];
}

/** Exponential moving average without the pull towards zero at the start; weight 0 changes nothing. */
export function smooth<T extends Point>(points: readonly T[], weight: number): T[] {
  if (weight <= 0) return [...points];
  let sum = 0;
  let mass = 0;
  return points.map((point) => {
    if (!Number.isFinite(point.value)) return point;
    sum = sum * weight + point.value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return { ...point, value: sum / mass };
  });
}

/** Cut where the steps go back: a new attempt that began again. */
export function runs<T extends Point>(points: readonly T[]): T[][] {
  const all: T[][] = [];
  let last: T | undefined;
  for (const point of points) {
    if (last === undefined || point.step < last.step) all.push([]);
    all.at(-1)?.push(point);
    last = point;
  }
  return all;
}

/** The `d` of a line; a value that cannot be drawn breaks it. */
export function linePath(
  points: readonly Point[],
  x: Scale,
  y: Scale,
  shape: "line" | "stairs" = "line",
): string {
  let pen = "M";
  let before = "";
  return points
    .map((point) => {
      const [px, py] = [x.at(point.step), y.at(point.value)];
      if (!Number.isFinite(px) || !Number.isFinite(py)) {
        pen = "M";
        return "";
      }
      const stair = shape === "stairs" && pen === "L" && before ? `H${round(px)}V${round(py)}` : "";
      const piece = stair || `${pen}${round(px)},${round(py)}`;
      pen = "L";
      before = piece;
      return piece;
    })
    .join("");
}

/** The point whose step is nearest; `points` are in order of step. */
export function nearest<T extends Point>(points: readonly T[], step: number): T | undefined {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((points[middle]?.step ?? 0) < step) low = middle + 1;
    else high = middle;
  }
  const [right, left] = [points[low], points[low - 1]];
  if (right === undefined || left === undefined) return right ?? left;
  return step - left.step <= right.step - step ? left : right;
}

function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  const share = rough / power;
  return (share <= 1 ? 1 : share <= 2 ? 2 : share <= 2.5 ? 2.5 : share <= 5 ? 5 : 10) * power;
}

function round(pixel: number): number {
  return Math.round(pixel * 100) / 100;
}
