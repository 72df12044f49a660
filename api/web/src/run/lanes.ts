/** What each worker did when, as the events of a job tell it, and how long steps took meanwhile. Pure. */
import { gist } from "../format";
import type { Curve, JobEvent, SystemSeries, Worker } from "../wire";

export type LaneState = "starting" | "healing" | "active" | "recovering";

/** From and until in Unix seconds. */
export interface Span {
  state: LaneState;
  from: number;
  until: number;
}

export interface Lane {
  worker: string;
  attempt: number;
  /** The id of its node, where that is known. */
  node: string | null;
  spans: readonly Span[];
  /** How it ended; null while it is there, and where the job ended with it. */
  end: { state: "lost" | "left"; at: number; why: string } | null;
}

interface Open {
  worker: string;
  attempt: number;
  node: string | null;
  spans: Span[];
  since: number;
  state: LaneState;
  end: Lane["end"];
  over: boolean;
}

/** The lanes in order of joining. `steps` are those of the curve from which it is known when a joiner's first step was
    committed; `now` is where lanes end that are not over. */
export function lanesOf(events: readonly JobEvent[], workers: readonly Worker[], steps: Pick<Curve, "steps" | "times"> | undefined, now: number): Lane[] {
  const lanes = new Map<string, Open>();
  const began = new Map<number, number>();
  const formed = new Map<number, number>();
  const open = (attempt: number): Open[] => [...lanes.values()].filter((one) => !one.over && one.attempt === attempt);
  for (const event of events) {
    const { type, attempt, data } = event;
    const at = Date.parse(event.at) / 1000;
    if (!began.has(attempt)) {
      began.set(attempt, at);
      // A new attempt begins with new processes.
      for (const one of [...lanes.values()].filter((lane) => !lane.over)) close(one, at);
    }
    const worker = typeof data.worker === "string" ? data.worker : "";
    const mine = lanes.get(`${attempt} ${worker}`);
    if (type === "generation.formed") formed.set(attempt, (formed.get(attempt) ?? 0) + 1);
    else if (type === "worker.joined") {
      const lane = joined(worker, attempt, at, (formed.get(attempt) ?? 0) <= 1 ? began.get(attempt) : undefined, committed(steps, data.step));
      lanes.set(`${attempt} ${worker}`, { ...lane, node: typeof data.node === "string" ? data.node : null });
    } else if (type === "worker.lost" && mine && !mine.over) {
      close(mine, at);
      mine.end = { state: "lost", at, why: words(data.cause) };
    } else if (type === "worker.left" && mine && !mine.over) {
      close(mine, at);
      mine.end = { state: "left", at, why: words(data.cause) };
    } else if (type === "recovered" && typeof data.total_s === "number") {
      for (const one of open(attempt)) turn(one, at - data.total_s, "recovering", at);
    } else if (ENDS.has(type)) for (const one of open(attempt)) close(one, at);
  }
  const nodes = new Map(workers.map((one) => [one.id, one.node]));
  return [...lanes.values()].map((one): Lane => {
    if (!one.over) close(one, Math.max(now, one.since));
    const { worker, attempt, spans, end } = one;
    // Jobs of the version before tell it of workers that are there now alone.
    return { worker, attempt, spans, end, node: one.node ?? (end === null ? (nodes.get(worker) ?? null) : null) };
  });
}

/** The nodes that are known, in the order of their colours. */
export function nodesOf(lanes: readonly Lane[]): string[] {
  return [...new Set(lanes.flatMap((lane) => (lane.node === null ? [] : [lane.node])))];
}

/** From and until of each stretch between the first and the last worker in which there was none: the job was paused or waited. */
export function absences(lanes: readonly Lane[]): [number, number][] {
  const spans = lanes.flatMap((lane) => lane.spans).sort((a, b) => a.from - b.from);
  const found: [number, number][] = [];
  let until = spans[0]?.from ?? 0;
  for (const span of spans) {
    if (span.from > until) found.push([until, span.from]);
    until = Math.max(until, span.until);
  }
  return found;
}

/** The mean seconds of a step in each of so many equal parts of a time; null where no step was committed, and while
    nobody was there to compute one. */
export function stepTimes(
  { steps, times }: Pick<Curve, "steps" | "times">,
  [from, until]: readonly [number, number],
  cells: number,
  away: readonly (readonly [number, number])[] = [],
): (number | null)[] {
  const seconds = new Array<number>(cells).fill(0);
  const counted = new Array<number>(cells).fill(0);
  for (let at = 1; at < steps.length; at++) {
    const [before, after] = [times[at - 1] ?? 0, times[at] ?? 0];
    const [made, took] = [(steps[at] ?? 0) - (steps[at - 1] ?? 0), after - before];
    if (made <= 0 || took < 0 || after < from || before > until) continue;
    if (away.some(([gone, back]) => before < back && after > gone)) continue;
    const first = Math.max(0, Math.floor(((before - from) / (until - from)) * cells));
    const last = Math.min(cells - 1, Math.floor(((after - from) / (until - from)) * cells));
    for (let cell = first; cell <= last; cell++) {
      seconds[cell] = (seconds[cell] ?? 0) + took;
      counted[cell] = (counted[cell] ?? 0) + made;
    }
  }
  return seconds.map((sum, cell) => ((counted[cell] ?? 0) > 0 ? sum / (counted[cell] ?? 1) : null));
}

/** The seconds that each worker took itself for a step, in so many equal parts of a time; null where it is not known. */
export function ownTimes(series: readonly SystemSeries[], [from, until]: readonly [number, number], cells: number): ReadonlyMap<string, (number | null)[]> {
  const own = series.filter((one) => one.kind === "worker" && one.figures.step_s !== undefined);
  return new Map(own.map((one) => [one.id, heatOf(one, from, until, cells)]));
}

function heatOf({ times, spans_s, figures }: SystemSeries, from: number, until: number, cells: number): (number | null)[] {
  const found = new Array<number | null>(cells).fill(null);
  const cellAt = (time: number): number => ((time - from) / (until - from)) * cells;
  times.forEach((time, at) => {
    const value = figures.step_s?.[at] ?? null;
    const [first, last] = [Math.floor(cellAt(time - (spans_s[at] ?? 0))), Math.ceil(cellAt(time)) - 1];
    // Of several in one part the slowest is seen.
    for (let cell = Math.max(0, first); value !== null && cell <= Math.min(cells - 1, last); cell++) found[cell] = Math.max(value, found[cell] ?? 0);
  });
  return found;
}

const ENDS: ReadonlySet<string> = new Set(["job.succeeded", "job.failed", "job.cancelled", "job.paused", "job.queued"]);

function joined(worker: string, attempt: number, at: number, began: number | undefined, committed: number | null): Open {
  // Clocks of machines differ a little.
  const since = Math.min(began ?? at, at);
  const lane: Open = { worker, attempt, node: null, spans: [], since, state: "active", end: null, over: false };
  if (began !== undefined) turn(lane, since, "starting", at);
  else if (committed !== null && committed > at) turn(lane, at, "healing", committed);
  return lane;
}

/** When the step behind this one was committed; null where that is not among the points. */
function committed(curve: Pick<Curve, "steps" | "times"> | undefined, step: unknown): number | null {
  const place = typeof step === "number" ? (curve?.steps.indexOf(step + 1) ?? -1) : -1;
  return curve?.times[place] ?? null;
}

/** Put a state between two times into a lane; what was before it goes on behind it. */
function turn(lane: Open, from: number, state: LaneState, until: number): void {
  const begins = Math.max(from, lane.since);
  if (begins > lane.since) lane.spans.push({ state: lane.state, from: lane.since, until: begins });
  if (until > begins) lane.spans.push({ state, from: begins, until });
  lane.since = Math.max(until, lane.since);
}

function close(lane: Open, at: number): void {
  if (at > lane.since) lane.spans.push({ state: lane.state, from: lane.since, until: at });
  lane.over = true;
}

function words(cause: unknown): string {
  return typeof cause === "string" ? gist(cause) : "";
}
