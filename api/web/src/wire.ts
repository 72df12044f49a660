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
  state: string;
  generation: number;
  shards: [number, number];
}

export interface MetricPoint {
  step: number;
  value: number;
  at: string;
  generation: number;
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

/** The bounds a job file asks for, with the defaults of the job file. */
export function workerBounds(spec: Record<string, unknown>): { min: number; max: number } {
  const workers = spec.workers;
  if (typeof workers !== "object" || workers === null) return { min: 1, max: 1 };
  const { min, max } = workers as { min?: unknown; max?: unknown };
  return { min: typeof min === "number" ? min : 1, max: typeof max === "number" ? max : 1 };
}
