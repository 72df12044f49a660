/** What a job keeps: its checkpoints, how they ended, and its files by what they are. Pure. */
import type { Artifact, Job, JobEvent, KeptCheckpoint } from "../wire";

/** The final weights. */
export const WEIGHTS = "weights.safetensors";
const SAVED = /^(.+)-(\d{8})\.[a-z]+$/;

/** The last part of its place, by which the API knows it. */
export function nameOf({ uri }: KeptCheckpoint): string {
  return uri.slice(uri.lastIndexOf("/") + 1);
}

/** Why it was written. */
export function kindOf(checkpoint: KeptCheckpoint): "end of the job" | "during training" {
  return nameOf(checkpoint).endsWith("-end") ? "end of the job" : "during training";
}

export interface Unsaved {
  at: string;
  step: number | null;
  why: string;
}

/** The last checkpoint that could not be written, unless one was written since. */
export function unsaved(events: readonly JobEvent[]): Unsaved | null {
  const last = events.findLast(({ type }) => type === "checkpoint.failed" || type === "checkpoint.saved");
  if (last?.type !== "checkpoint.failed") return null;
  const { step, why } = last.data;
  return { at: last.at, step: typeof step === "number" ? step : null, why: typeof why === "string" ? why : "" };
}

/** A new word with each checkpoint, or file, that the events tell of: time to read them again. */
export function told(events: readonly JobEvent[], type: "checkpoint.saved" | "artifact.saved"): number {
  return events.reduce((all, event) => all + Number(event.type === type), 0);
}

/** What a job begins with that takes over this job's final weights: its id, once it has them. */
export function finalBeginning(job: Job, artifacts: readonly Artifact[]): string | null {
  return job.state === "succeeded" && artifacts.some(({ name }) => name === WEIGHTS) ? job.id : null;
}

/** The step at which a file was saved, and the name under which; a file without a step has its own name. */
export function savedAs(file: string): { name: string; step: number | null } {
  const found = SAVED.exec(file);
  return { name: found?.[1] ?? file, step: found ? Number(found[2]) : null };
}

/** The newest `most` images by step, newest first. */
export function newestImages(artifacts: readonly Artifact[], most: number): Artifact[] {
  const images = artifacts.filter(({ name }) => name.endsWith(".png"));
  return images.toSorted((a, b) => (savedAs(b.name).step ?? -1) - (savedAs(a.name).step ?? -1)).slice(0, most);
}
