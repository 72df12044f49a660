/** Curves as a table: the values that were read, one column each. Pure. */
import type { XKind } from "./axes";
import type { Line, Range } from "./lines";
import type { Cell } from "./save";

/** What the first column counts, with its unit. */
export function xHead({ unit, label }: XKind): string {
  return unit === "count" ? label.toLowerCase() : `${label.toLowerCase()} (${unit === "time" ? "Unix seconds" : "seconds"})`;
}

/** A head, then a row for each x inside the stretch. A line without a value there has an empty cell; one with several
    values at an x has as many rows. */
export function wide(lines: readonly Line[], x: string, within: Range | null): Cell[][] {
  const [low, high] = within ?? [-Infinity, Infinity];
  const rows = new Map<number, Cell[][]>();
  lines.forEach(({ xs, ys }, column) => {
    let [before, turn] = [NaN, 0];
    xs.forEach((at, index) => {
      if (at < low || at > high) return;
      turn = at === before ? turn + 1 : 0;
      before = at;
      const here = rows.get(at) ?? [];
      rows.set(at, here);
      const row = (here[turn] ??= [at, ...lines.map(() => NaN)]);
      row[column + 1] = ys[index] ?? NaN;
    });
  });
  const body = [...rows.keys()].sort((a, b) => a - b).flatMap((at) => rows.get(at) ?? []);
  return [[x, ...lines.map((line) => line.label)], ...body];
}
