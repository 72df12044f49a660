/** The JSON shapes of `GET /cluster/occupancy` and `GET /cluster/history`. */
import { read } from "../api";
import { queryText } from "../address";
import type { Project } from "../projects";
import type { Why } from "../wire";

export interface Resources {
  cpus: number;
  gpus: number;
  memory_gb: number;
}

/** A job's part of a node; without a name where one may not read the job. */
export interface JobOnNode extends Resources {
  job: string | null;
  name: string | null;
  project: string | null;
  places: number;
  servers: number;
  members: string[];
}

export interface OccupiedNode extends Resources {
  id: string;
  address: string;
  others: Resources;
  jobs: JobOnNode[];
}

export interface WaitingJob {
  place: number;
  job: string | null;
  name: string | null;
  project: string | null;
  workers: number | null;
  since: string | null;
  why: Why | null;
  /** When it starts at the latest; null where nobody knows. */
  starts_by: string | null;
}

export interface AskedFor extends Resources {
  workers: number | null;
  why: string;
}

export interface Growing {
  reach_cpus: number;
  reach_gpus: number;
  /** Null where another control plane asks. */
  asked: AskedFor[] | null;
  missing: AskedFor[];
  trouble: string;
}

export interface Occupancy {
  reachable: boolean;
  trouble: string;
  nodes: OccupiedNode[];
  queue: WaitingJob[];
  waiting: number;
  projects: Pick<Project, "name" | "quota" | "held">[];
  growing: Growing | null;
}

/** Minute by minute, by columns. */
export interface History {
  at: string[];
  nodes: number[];
  cpus: number[];
  gpus: number[];
  held_cpus: number[];
  held_gpus: number[];
  jobs: number[];
  waiting: number[];
}

export function occupancy(signal?: AbortSignal): Promise<Occupancy> {
  return read<Occupancy>("/cluster/occupancy", { signal });
}

export function history(hours: number, signal?: AbortSignal): Promise<History> {
  return read<History>(`/cluster/history${queryText({ hours })}`, { signal });
}
