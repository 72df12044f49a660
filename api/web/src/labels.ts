/** Changes of jobs' labels: what is set, and what is removed. */
import type { Job } from "./wire";

/** By key the value from now on; null: the job has the label no more. */
export type LabelChange = Readonly<Record<string, string | null>>;

const KEY = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/;
const MOST_VALUE = 200;

/** The label that a text as `key=value` sets, or why it sets none. */
export function labelIn(text: string): { key: string; value: string } | string {
  const at = text.indexOf("=");
  const [key, value] = [text.slice(0, at).trim(), text.slice(at + 1).trim()];
  if (at < 0) return "A label has the form key=value.";
  if (!KEY.test(key)) return "A key has letters, digits, '.', '_' and '-', 100 at most, and starts with a letter or digit.";
  return value.length > MOST_VALUE ? `A value has ${MOST_VALUE} characters at most.` : { key, value };
}

/** The labels that any of the jobs has, each once, with how many have it. */
export function labelsOf(jobs: readonly Pick<Job, "labels">[]): { key: string; value: string; jobs: number }[] {
  const found = new Map<string, { key: string; value: string; jobs: number }>();
  for (const [key, value] of jobs.flatMap((job) => Object.entries(job.labels))) {
    const known = found.get(`${key}=${value}`) ?? { key, value, jobs: 0 };
    found.set(`${key}=${value}`, { ...known, jobs: known.jobs + 1 });
  }
  return [...found.values()].sort((a, b) => a.key.localeCompare(b.key) || a.value.localeCompare(b.value));
}
