/** The JSON shapes of the REST API (`ringleader.wire.views`), as the page reads them. */

export const STATES = [
  "queued",
  "starting",
  "running",
  "recovering",
  "stopping",
  "paused",
  "succeeded",
  "failed",
  "cancelled",
] as const;

export type State = (typeof STATES)[number];

const ENDED: ReadonlySet<string> = new Set(["succeeded", "failed", "cancelled"]);

export function hasEnded(state: State): boolean {
  return ENDED.has(state);
}

export interface Why {
  code: string;
  message: string;
  hint: string;
}

export interface Progress {
  step: number;
  total_steps: number | null;
  epoch: number;
}

export interface Result {
  steps: number;
  samples: number;
  loss: number | null;
  scores: Record<string, number>;
  generations: number;
  reproducible: boolean;
  reproducible_why: string;
  weights_sha256: string;
  weights_uri: string;
  run_id: string;
  wall_s: number;
  compute_s: number;
  exposed_communication_s: number;
  idle_s: number;
  recovery_s: number;
  ledger_uri: string;
  checkpoint_uri: string;
  attempts: number;
  recoveries: number;
  steps_lost: number;
}

/** A file that a job has left. */
export interface Artifact {
  name: string;
  size_bytes: number;
}

/** A checkpoint that is whole and still there; `step` global steps are in it. */
export interface KeptCheckpoint {
  step: number;
  uri: string;
  size_bytes: number;
  attempt: number;
  at: string;
}

/** What a job has cost so far, over all its attempts. */
export interface Totals {
  attempts: number;
  generations: number;
  recoveries: number;
  steps_lost: number;
  wall_s: number;
}

export interface Job {
  id: string;
  name: string;
  project: string;
  labels: Record<string, string>;
  owner: string;
  spec: Record<string, unknown>;
  state: State;
  pending_reason: Why | null;
  reason: Why | null;
  attempt: number;
  generation: number;
  world_size: number;
  progress: Progress;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  failures: { spent: number; max: number };
  totals: Totals;
  /** Where workers above workers.min come from on this cluster; empty where there are none. */
  surplus: string;
  result: Result | null;
  tracking: { run_id: string; url: string };
  urls: { self: string; page: string };
  /** Of the metrics that a list was asked for. */
  metrics?: Record<string, MetricValues>;
}

/** What a metric of a job came to. */
export interface MetricValues {
  last: number;
  min: number;
  max: number;
  step: number;
}

/** What the newest jobs have, by which a list can be filtered, sorted and shown. */
export interface Facets {
  owners: string[];
  projects: string[];
  labels: Record<string, string[]>;
  params: string[];
  metrics: string[];
}

/** The jobs with the same value of a label or parameter; null: those without one. */
export interface JobGroup {
  value: string | null;
  /** The label or param that lists them. */
  filter: string;
  jobs: number;
  metrics: Record<string, { last: number; min: number; max: number; jobs: number }>;
}

export interface JobGroups {
  groups: JobGroup[];
  /** There are others. */
  more: boolean;
}

export interface Curve {
  job: string;
  name: string;
  steps: number[];
  /** Unix seconds. */
  times: number[];
  /** Null where the value is not a number. */
  values: (number | null)[];
}

/** The answer of `GET /curves`. */
export interface Comparison {
  jobs: { id: string; name: string; project: string; state: State; started_at: string | null }[];
  curves: Curve[];
  left_out: string[];
}

export interface JobPage {
  items: Job[];
  next_cursor: string | null;
}

export interface JobEvent {
  seq: number;
  type: string;
  at: string;
  attempt: number;
  generation: number;
  data: Record<string, unknown>;
}

export interface Worker {
  id: string;
  role: string;
  rank: number | null;
  pid: number;
  node: string;
  /** Of its node; empty or left out: not known. */
  address?: string;
  state: string;
  generation: number;
  shards: [number, number];
  /** What it and all that it has started use: of one core, and bytes. Null or left out: not measured. */
  cpu_percent?: number | null;
  memory_bytes?: number | null;
  gpu_memory_bytes?: number | null;
}

/** What a worker or node used, by columns: each sample stands for so many seconds that ended at its Unix time. */
export interface SystemSeries {
  kind: "worker" | "node";
  id: string;
  node: string;
  times: number[];
  spans_s: number[];
  figures: Record<string, (number | null)[]>;
  /** The figures that nobody measured, and why. */
  unmet: Record<string, string>;
}

export interface LogLine {
  seq: number;
  at: string;
  worker: string;
  level: string;
  line: string;
}

/** The answer to a dry run. */
export interface Admission {
  starts_now: boolean;
  pending_reason: Why | null;
  logical_shards: number;
  reproducible: boolean;
  reproducible_why: string;
  surplus: string;
  spec: Record<string, unknown>;
}

export interface Finding {
  pointer: string;
  value?: unknown;
  allowed: string;
  message: string;
}

export interface Problem {
  title: string;
  status: number;
  detail: string;
  code: string;
  hint: string;
  errors: Finding[];
}

/** Whether another library's engine runs the program, of whose steps and bits nothing is known. */
export function isHosted(spec: Record<string, unknown>): boolean {
  return spec.framework === "torchrun" || spec.framework === "ray_train_hosted";
}

export function priorityOf(spec: Record<string, unknown>): number {
  return typeof spec.priority === "number" ? spec.priority : 0;
}

/** The bounds a job file asks for, with the defaults of the job file. */
export function workerBounds(spec: Record<string, unknown>): { min: number; max: number } {
  const workers = spec.workers;
  if (typeof workers !== "object" || workers === null) return { min: 1, max: 1 };
  const { min, max } = workers as { min?: unknown; max?: unknown };
  return { min: typeof min === "number" ? min : 1, max: typeof max === "number" ? max : 1 };
}

export type SweepState = "running" | "paused" | "succeeded" | "failed" | "cancelled";

/** A sweep; `rungs` are steps, `best` is the number of the leading trial. */
export interface Sweep {
  id: string;
  name: string;
  project: string;
  owner: string;
  spec: {
    metric: { name: string; goal?: "minimize" | "maximize" };
    space: Record<string, { log_uniform?: readonly number[] | null }>;
    method?: string;
    parallel?: number;
    [key: string]: unknown;
  };
  state: SweepState;
  reason: Why | null;
  created_at: string;
  finished_at: string | null;
  rungs: number[];
  trials: number;
  submitted: number;
  ended: number;
  best: number | null;
  best_score: number | null;
  improvements: { at: string; trial: number; score: number }[];
}

/** One trial of a sweep; `scores` are those at the rungs that it has reached, and at its end. */
export interface Trial {
  number: number;
  state: string;
  point: Record<string, unknown> | null;
  job: string | null;
  job_state: State | null;
  rung: number;
  scores: number[];
  score: number | null;
  step: number;
  reason: Why | null;
}
