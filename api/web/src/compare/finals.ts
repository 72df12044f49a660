/** The last value of each metric of each run, and how far it is from the baseline's. Pure. */
import { number } from "../format";
import type { Comparison } from "../wire";

/** A metric's last value; NaN where it is not a number, undefined where the run has no value. */
export type Finals = ReadonlyMap<string, Readonly<Record<string, number>>>;

export function finalsOf(answer: Comparison): Finals {
  const all = new Map<string, Record<string, number>>();
  for (const { job, name, values } of answer.curves) {
    const last = values.at(-1);
    if (last === undefined) continue;
    all.set(job, { ...all.get(job), [name]: last ?? NaN });
  }
  return all;
}

/** A value as the table shows it: that a run ended without a number is a finding. */
export function valueWords(value: number | undefined): string {
  return value !== undefined && Number.isNaN(value) ? "not a number" : number(value);
}

/** "+0.02 (+4.1 %)"; nothing where there is nothing to compare. */
export function deltaWords(value: number | undefined, base: number | undefined): string {
  if (value === undefined || base === undefined || !Number.isFinite(value - base)) return "";
  const delta = value - base;
  if (delta === 0) return "±0";
  const sign = delta > 0 ? "+" : "−";
  const share = base === 0 ? "" : ` (${sign}${(Math.abs(delta / base) * 100).toFixed(1)} %)`;
  return `${sign}${number(Math.abs(delta))}${share}`;
}
