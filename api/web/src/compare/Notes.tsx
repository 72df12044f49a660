/** What the reader of a shared link should know: who is left out, what does not exist, what a limit cut off. */
import { plural } from "../format";
import { LeftOut } from "../parts/Notice";
import { batchesOf } from "../plot/curves";
import type { Files } from "./runs";
import type { Comparison } from "../wire";
import { MAX_JOBS, MAX_NAMES, type Parsed } from "./state";

interface Props {
  parsed: Parsed;
  answer: Comparison;
  files: Files | undefined;
}

export function Notes({ parsed, answer, files }: Props) {
  return <LeftOut notes={notesOf(parsed, answer, files)} />;
}

export function notesOf({ state, surplus, ignored }: Parsed, { jobs, curves, left_out }: Comparison, files: Files | undefined): string[] {
  const unknown = state.names.filter((name) => !curves.some((curve) => curve.name === name));
  const sizeless = files && jobs.filter((job) => batchesOf(files.get(job.id)) === null);
  const unread = files ? jobs.length - files.size : 0;
  const unstarted = jobs.filter((job) => job.started_at === null);
  const says = [
    left_out.length > 0 && `Left out, because they do not exist or you may not see them: ${left_out.join(", ")}.`,
    surplus.jobs > 0 && `Left out: ${plural(surplus.jobs, "more job")}; at most ${MAX_JOBS} are compared at once.`,
    surplus.names > 0 && `Left out: ${plural(surplus.names, "more metric")}; at most ${MAX_NAMES} are shown at once.`,
    ignored.length > 0 && `Left out, because no comparison has it: ${ignored.join(", ")}.`,
    jobs.length > 0 && unknown.length > 0 && `None of these runs has a value of ${unknown.join(", ")} yet.`,
    state.baseline !== null && !jobs.some((job) => job.id === state.baseline) && `The baseline ${state.baseline} is not among the runs.`,
    unread > 0 && `${plural(unread, "job file")} could not be read.`,
    state.axis === "relative" && unstarted.length > 0 && `Not drawn, because not started: ${plural(unstarted.length, "run")}.`,
    state.axis === "rows" && sizeless && sizeless.length > 0 && `Not drawn by rows, because the job file gives no batch size: ${plural(sizeless.length, "run")}.`,
  ];
  return says.filter((note) => typeof note === "string");
}
