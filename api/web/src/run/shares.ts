/** Where the time of a job's steps went, by stretches of steps. Pure. */
import type { Recovery } from "../history";
import type { Curve } from "../wire";

/** The steps behind `from` up to `until`, and the shares of their time, which are 1 together. */
export interface Shares {
  from: number;
  until: number;
  seconds: number;
  /** Computing, and what the program does beside its steps; with loading where nothing is known of that. */
  rest: number;
  loading: number;
  /** Waiting for the exchange; where it is known apart, without what one waited for other workers. */
  exchange: number;
  idle: number;
  recovery: number;
}

/** The curves of the shares in which workers waited: for batches, for the exchange as one of them tells, and, by all of
    them, for the exchange alone and for one another. */
export interface Waits {
  loading: Curve | undefined;
  exposed: Curve | undefined;
  exchange: Curve | undefined;
  idle: Curve | undefined;
}

/** At most `most` stretches of equal steps. */
export function sharesOf(pace: Curve | undefined, waits: Waits, recoveries: readonly Recovery[], most: number): Shares[] {
  const [steps, times] = [pace?.steps ?? [], pace?.times ?? []];
  const [first, last] = [steps[0] ?? 0, steps.at(-1) ?? 0];
  const parts = Math.min(most, Math.max(0, steps.length - 1));
  const found: Shares[] = [];
  let before = 0;
  for (let part = 1; part <= parts; part++) {
    const end = steps.findIndex((step) => step >= first + ((last - first) * part) / parts);
    const seconds = (times[end] ?? 0) - (times[before] ?? 0);
    if (end <= before || seconds <= 0) continue;
    const [from, until] = [steps[before] ?? 0, steps[end] ?? 0];
    const lost = recoveries.reduce((sum, one) => sum + (one.until > from && one.until <= until ? one.totalS : 0), 0);
    const recovery = Math.min(1, lost / seconds);
    let left = 1 - recovery;
    // Of what is left: who tells of one wait need not be who tells of another.
    const taken = (curve: Curve | undefined): number | null => {
      const mean = meanWithin(curve, from, until);
      const share = Math.min(left, (mean ?? 0) * (1 - recovery));
      left -= share;
      return mean === null ? null : share;
    };
    const exchange = taken(waits.exchange) ?? taken(waits.exposed) ?? 0;
    const idle = taken(waits.idle) ?? 0;
    const loading = taken(waits.loading) ?? 0;
    found.push({ from, until, seconds, recovery, exchange, idle, loading, rest: Math.max(0, left) });
    before = end;
  }
  return found;
}

/** Null where nothing is told of these steps. */
function meanWithin(curve: Curve | undefined, from: number, until: number): number | null {
  let [sum, all] = [0, 0];
  curve?.steps.forEach((step, at) => {
    const value = curve.values[at] ?? null;
    if (step <= from || step > until || value === null) return;
    sum += Math.min(1, Math.max(0, value));
    all += 1;
  });
  return all > 0 ? sum / all : null;
}
