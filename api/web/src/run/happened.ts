/** What the events of a job tell, at its place on an x axis. Pure. */
import { duration } from "../format";
import {
  boundaries,
  checkpoints,
  lostWorkers,
  recoveries,
  type Boundary,
  type Checkpoint,
  type Lost,
  type Recovery,
} from "../history";
import { xsOf, type AxisName, type Clock } from "../plot/curves";
import type { Range } from "../plot/lines";
import type { Mark } from "../plot/marks";
import type { JobEvent } from "../wire";

type Told =
  | { kind: "generation"; of: Boundary }
  | { kind: "recovery"; of: Recovery }
  | { kind: "lost"; of: Lost }
  | { kind: "checkpoint"; of: Checkpoint };

export type Placed = Mark & Told & { key: string };

/** All of it by an axis, in order of x; `attempt` is the job's own now. */
export function placedOf(events: readonly JobEvent[], axis: AxisName, clock: Clock, attempt: number): Placed[] {
  const told: Told[] = [
    ...boundaries(events).map((of) => ({ kind: "generation", of }) as const),
    ...recoveries(events).map((of) => ({ kind: "recovery", of }) as const),
    ...checkpoints(events).map((of) => ({ kind: "checkpoint", of }) as const),
    ...lostWorkers(events).map((of) => ({ kind: "lost", of }) as const),
  ];
  return told
    .flatMap((one): Placed[] => {
      const [x, until] = xsOf(extent(one), axis, clock) ?? [];
      if (x === undefined || until === undefined) return [];
      const name = one.kind === "generation" ? `${one.of.attempt}.${one.of.generation}` : String(one.of.seq);
      return [{ ...one, x, until, faint: one.of.attempt < attempt, key: `${one.kind} ${name}` }];
    })
    .sort((a, b) => a.x - b.x);
}

/** One mark a pixel and kind: more would lie on each other. */
export function distinct(placed: readonly Placed[], [low, high]: Range, pixels: number): Placed[] {
  const seen = new Set<string>();
  return placed.filter(({ kind, x }) => {
    const place = `${kind} ${Math.round(((x - low) / (high - low)) * pixels)}`;
    return seen.size < seen.add(place).size;
  });
}

/** What a mark says. */
export function saidOf(one: Placed): string {
  if (one.kind === "lost") return `Worker ${one.of.worker} lost at step ${one.of.step}: ${one.of.cause}`;
  if (one.kind === "recovery") return `Recovered in ${duration(one.of.totalS)}`;
  if (one.kind === "checkpoint") return `Checkpoint saved at step ${one.of.step}`;
  return `Generation ${one.of.generation} from step ${one.of.step} on`;
}

function extent(one: Told): { steps: number[]; times: number[] } {
  const at = Date.parse(one.of.at) / 1000;
  // A recovery is told of once it is over.
  if (one.kind === "recovery") return { steps: [one.of.step, one.of.until], times: [at - one.of.totalS, at] };
  return { steps: [one.of.step, one.of.step], times: [at, at] };
}
