/** A curve as small as a word: its shape, and its newest value beside it. */
import { number } from "../format";
import type { Curve } from "../wire";

const WIDTH = 72;
const HEIGHT = 22;
const EDGE = 2;

export function Sparkline({ name, curve }: { name: string; curve: Curve | undefined }) {
  const last = curve?.values.findLast((value) => value !== null);
  if (curve === undefined || last === undefined) return <span className="muted">–</span>;
  return (
    <span className="sparkline">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        width={WIDTH}
        height={HEIGHT}
        role="img"
        aria-label={`Curve of ${name}, now ${number(last)}`}
        data-points={curve.values.length}
      >
        <path d={pathOf(curve.steps, curve.values)} />
      </svg>
      <span aria-hidden="true">{number(last)}</span>
    </span>
  );
}

/** A line through the values, broken where one is not a number. */
export function pathOf(steps: readonly number[], values: readonly (number | null)[]): string {
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const [first, last] = [steps[0] ?? 0, steps.at(-1) ?? 0];
  const x = (step: number): number => EDGE + share(step, first, last) * (WIDTH - 2 * EDGE);
  const y = (value: number): number => HEIGHT - EDGE - share(value, low, high) * (HEIGHT - 2 * EDGE);
  let broken = true;
  return values
    .flatMap((value, at) => {
      const begins = broken;
      broken = value === null;
      return value === null ? [] : [`${begins ? "M" : "L"}${x(steps[at] ?? 0).toFixed(1)} ${y(value).toFixed(1)}`];
    })
    .join("");
}

/** How far `value` is from `low` to `high`; in the middle where there is no way to go. */
function share(value: number, low: number, high: number): number {
  return high > low ? (value - low) / (high - low) : 0.5;
}
