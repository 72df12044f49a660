/** From the answer of `GET /curves` to lines: who is compared, in which colour, by which axis. Pure. */
import { batchesOf, pointsOf, type AxisName, type Clock } from "../plot/curves";
import type { Line, Look } from "../plot/lines";
import { lookOf } from "../plot/palette";
import type { Comparison, Job, State } from "../wire";

export interface Run {
  id: string;
  /** Its name, with the end of its id where several have that name. */
  label: string;
  project: string;
  state: State;
  /** Unix seconds. */
  startedAt: number | null;
  look: Look;
}

/** The job files that are known so far. */
export type Files = ReadonlyMap<string, Job>;

export function runsOf({ jobs }: Comparison): Run[] {
  const times = new Map<string, number>();
  for (const { name } of jobs) times.set(name, (times.get(name) ?? 0) + 1);
  return jobs.map((job, at) => ({
    id: job.id,
    label: (times.get(job.name) ?? 0) > 1 ? `${job.name} (${job.id.slice(-5)})` : job.name,
    project: job.project,
    state: job.state,
    startedAt: job.started_at === null ? null : Date.parse(job.started_at) / 1000,
    look: lookOf(at),
  }));
}

/** The lines of a metric by an axis; a run without values there has none. */
export function linesOf(answer: Comparison, name: string, runs: readonly Run[], axis: AxisName, files: Files): Line[] {
  const curves = new Map(answer.curves.filter((one) => one.name === name).map((one) => [one.job, one]));
  return runs.flatMap((run) => {
    const curve = curves.get(run.id);
    const points = curve && pointsOf(curve, axis, clockOf(run, files));
    return points ? [{ id: run.id, label: run.label, look: run.look, ...points }] : [];
  });
}

export function clockOf({ id, startedAt }: Run, files: Files): Clock {
  return { startedAt, batches: batchesOf(files.get(id)) };
}
