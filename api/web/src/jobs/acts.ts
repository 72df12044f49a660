/** What one can do to several jobs at once, which of them it suits, and what came of it. */
import { ApiError, cancel, pause, relabel, remove, resume } from "../api";
import type { LabelChange } from "../labels";
import { hasEnded, type Job } from "../wire";

export interface Act {
  id: "pause" | "resume" | "cancel" | "delete" | "label";
  title: string;
  /** What is asked before; null: it can be undone. */
  warning: string | null;
  suits: (job: Job) => boolean;
  run: (id: string) => Promise<void>;
}

const LIVE = new Set(["queued", "starting", "running", "recovering"]);

export const ACTS: readonly Act[] = [
  { id: "pause", title: "Pause", warning: null, suits: ({ state }) => LIVE.has(state), run: pause },
  { id: "resume", title: "Resume", warning: null, suits: ({ state }) => state === "paused", run: resume },
  {
    id: "cancel",
    title: "Cancel",
    warning: "They stop after their current step and cannot be resumed. Their metrics, events and logs are kept.",
    suits: ({ state }) => !hasEnded(state) && state !== "stopping",
    run: cancel,
  },
  {
    id: "delete",
    title: "Delete",
    warning: "Their metrics, events, logs and files are deleted, and cannot be brought back.",
    suits: ({ state }) => hasEnded(state),
    run: remove,
  },
];

/** Changes labels, which jobs have in any state. */
export function labelling(change: LabelChange): Act {
  return { id: "label", title: "Label", warning: null, suits: () => true, run: (id) => relabel(id, change) };
}

export interface Refused {
  job: Job;
  error: ApiError;
}

/** Does it to each job that it suits; one that is refused does not keep it from the others. */
export async function actOn(act: Act, jobs: readonly Job[]): Promise<Refused[]> {
  const suited = jobs.filter(act.suits);
  const ends = await Promise.allSettled(suited.map((job) => act.run(job.id)));
  return suited.flatMap((job, at) => {
    const end = ends[at];
    if (end?.status !== "rejected") return [];
    const reason: unknown = end.reason;
    return [{ job, error: reason instanceof ApiError ? reason : new ApiError({ status: 0, detail: String(reason) }) }];
  });
}
