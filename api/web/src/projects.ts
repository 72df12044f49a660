/** Requests about projects: what each is due and what its jobs hold. Shapes of `ringleader.wire.access`. */
import { all, read } from "./api";

export const KINDS = ["workers", "cpus", "gpus"] as const;
export type Kind = (typeof KINDS)[number];
export type Quota = Record<Kind, number | null>;

export interface Project {
  name: string;
  role: string;
  created_at: string;
  weight: number;
  quota: Quota;
  held: Record<Kind, number> & { jobs: number; waiting: number };
}

export function projects(signal?: AbortSignal): Promise<Project[]> {
  return all<Project>("/projects", signal);
}

export function shareOut(name: string, weight: number, quota: Quota): Promise<Project> {
  return read<Project>(`/projects/${encodeURIComponent(name)}`, { method: "PATCH", body: { weight, quota } });
}

/** What is held, beside the limit where there is one. */
export function holds(project: Pick<Project, "quota" | "held">, kind: Kind): string {
  const limit = project.quota[kind];
  return limit === null ? String(project.held[kind]) : `${project.held[kind]} of ${limit}`;
}

/** What a form says as a limit: nothing is no limit; null where it is no number from 0 up. */
export function limitOf(text: string): { limit: number | null } | null {
  if (text.trim() === "") return { limit: null };
  const limit = Number(text);
  return Number.isFinite(limit) && limit >= 0 ? { limit } : null;
}
