/** A sweep's trials as its page shows them: in order, by rung, as axes, and the best score so far. Pure. */
import { differences, type Difference } from "../compare/differences";
import { dimensionsOf } from "../compare/dimensions";
import type { Run } from "../compare/runs";
import type { Line } from "../plot/lines";
import type { Dimension } from "../plot/paint";
import { lookOf } from "../plot/palette";
import type { Sweep, Trial } from "../wire";

/** The trials in the order of a column; without one the best first: those that have come furthest, by their last score. */
export function ordered(trials: readonly Trial[], sweep: Sweep, sort: string | undefined): Trial[] {
  if (sort === undefined) return [...trials].sort((a, b) => furthest(a, b, sweep));
  const key = sort.replace(/^-/, "");
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...trials].sort((a, b) => {
    const [x, y] = [valueOf(a, key), valueOf(b, key)];
    // Trials without a value come last, whichever way.
    if (x === null || y === null) return Number(x === null) - Number(y === null) || a.number - b.number;
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return sign * order || a.number - b.number;
  });
}

function furthest(a: Trial, b: Trial, sweep: Sweep): number {
  if (a.scores.length !== b.scores.length) return b.scores.length - a.scores.length;
  const [x, y] = [a.scores.at(-1) ?? 0, b.scores.at(-1) ?? 0];
  return (sweep.spec.metric.goal === "maximize" ? y - x : x - y) || a.number - b.number;
}

function valueOf(trial: Trial, key: string): number | string | null {
  if (key === "trial") return trial.number;
  if (key === "state") return trial.state;
  if (key === "step") return trial.step;
  if (key === "score") return trial.score;
  const value = trial.point?.[key];
  if (value === undefined || value === null) return null;
  return typeof value === "number" ? value : words(value);
}

/** A value of a point. */
export function words(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The keys in which the trials differ, in the order of the sweep file. */
export function keysOf(trials: readonly Trial[]): string[] {
  return [...new Set(trials.flatMap((trial) => Object.keys(trial.point ?? {})))];
}

export interface Rung {
  step: number | null;
  reached: number;
  /** Trials that came to their end before it: their last score counts here. */
  before: number;
  went: number;
  best: number | null;
}

/** Each rung, and the end: how many have reached it, how many went on from there, and the best score that counts there. */
export function rungsOf(sweep: Sweep, trials: readonly Trial[]): Rung[] {
  const best = sweep.spec.metric.goal === "maximize" ? Math.max : Math.min;
  return [...sweep.rungs, null].map((step, rung) => {
    const scored = trials.filter(({ scores }) => scores.length > rung);
    const scores = scored.flatMap(({ scores }) => scores[rung] ?? []);
    const before = step === null ? 0 : scored.filter((trial) => trial.step < step).length;
    return {
      step,
      reached: scored.length - before,
      before,
      went: trials.filter((trial) => trial.rung > rung).length,
      best: scores.length > 0 ? best(...scores) : null,
    };
  });
}

/** The trials that have a job, as runs of the plots that compare them. */
export function runsOfTrials(sweep: Sweep, trials: readonly Trial[]): Run[] {
  return trials.map((trial) => ({
    id: trial.job ?? `trial-${trial.number}`,
    label: `${sweep.name}-${trial.number}`,
    project: sweep.project,
    state: trial.job_state ?? "queued",
    startedAt: null,
    look: lookOf(trial.number),
  }));
}

/** The keys of the points and the metric, as axes of parallel coordinates. */
export function axesOf(sweep: Sweep, trials: readonly Trial[]): Dimension[] {
  const ids = runsOfTrials(sweep, trials).map((run) => run.id);
  const metric = sweep.spec.metric.name;
  const finals = new Map(trials.map((trial, at) => [ids[at] ?? "", trial.score === null ? {} : { [metric]: trial.score }]));
  const different: Difference[] = differences(trials.map((trial) => trial.point ?? {}));
  const logKeys = Object.entries(sweep.spec.space).flatMap(([key, draws]) => (draws.log_uniform ? [key] : []));
  return dimensionsOf(ids, different, [metric], finals, logKeys);
}

/** The best score so far over the time since the sweep was made, as a line of steps. */
export function bestSoFar(sweep: Sweep, now: number): Line[] {
  const since = Date.parse(sweep.created_at);
  const points = sweep.improvements.map(({ at, score }) => [(Date.parse(at) - since) / 1000, score] as const);
  if (points.length === 0) return [];
  const end = (sweep.finished_at === null ? now : Date.parse(sweep.finished_at)) - since;
  const [xs, ys]: [number[], number[]] = [[], []];
  for (const [at, score] of points) {
    const before = ys.at(-1);
    if (before !== undefined) {
      xs.push(at);
      ys.push(before);
    }
    xs.push(at);
    ys.push(score);
  }
  xs.push(Math.max(end / 1000, xs.at(-1) ?? 0));
  ys.push(ys.at(-1) ?? NaN);
  return [{ id: sweep.id, label: "best so far", look: lookOf(0), xs: Float64Array.from(xs), ys: Float64Array.from(ys) }];
}
