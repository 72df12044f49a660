/** A question about a job, before something is done to it. */
import type { Job } from "../wire";

export interface Question {
  job: Job;
  onClose: () => void;
  onDone: () => void;
}
