/** What one can do to the selected jobs, and whom of them it did not suit. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { queryText } from "../address";
import { plural } from "../format";
import { Dialog } from "../parts/Dialog";
import { LabelDialog } from "../parts/LabelDialog";
import { Notice } from "../parts/Notice";
import type { Job } from "../wire";
import { ACTS, actOn, labelling, type Act } from "./acts";

export function Selection({ jobs, onClear }: { jobs: readonly Job[]; onClear: () => void }) {
  const [asking, setAsking] = useState<Act | null>(null);
  const [labels, setLabels] = useState(false);
  const cache = useQueryClient();
  const { mutate, data: refused, variables: act, isPending, reset } = useMutation({
    mutationFn: (act: Act) => actOn(act, jobs),
    onSettled: () => Promise.all([["jobs"], ["facets"]].map((queryKey) => cache.invalidateQueries({ queryKey }))),
  });
  const begin = (act: Act): void => (act.warning === null ? mutate(act) : setAsking(act));
  if (jobs.length === 0) return null;
  return (
    <div className="selection" role="region" aria-label="Selected jobs">
      <b aria-live="polite">{plural(jobs.length, "job")} selected</b>
      {jobs.length > 1 && (
        <a className="button" href={`/compare${queryText({ jobs: jobs.map((job) => job.id).join(",") })}`}>
          Compare
        </a>
      )}
      <button type="button" disabled={isPending} onClick={() => setLabels(true)}>
        Label…
      </button>
      {ACTS.map((one) => {
        const suited = jobs.filter(one.suits).length;
        return (
          <button
            key={one.id}
            type="button"
            className={one.warning === null ? undefined : "danger"}
            disabled={suited === 0 || isPending}
            onClick={() => begin(one)}
          >
            {one.title}
            {suited > 0 && suited < jobs.length && ` ${suited}`}
            {one.warning !== null && "…"}
          </button>
        );
      })}
      <button type="button" className="quiet push" onClick={onClear}>
        Clear
      </button>
      {refused && refused.length > 0 && (
        <Notice tone="bad" title={`${act.title}: ${plural(refused.length, "job")} refused`}>
          {refused.map(({ job, error }) => (
            <p key={job.id}>
              <b>{job.name}</b> {error.message} {error.hint}
            </p>
          ))}
          <p>
            <button type="button" className="small" onClick={reset}>
              Close
            </button>
          </p>
        </Notice>
      )}
      {labels && (
        <LabelDialog
          title={`Labels of ${plural(jobs.length, "job")}`}
          jobs={jobs}
          onClose={() => setLabels(false)}
          onYes={(change) => {
            mutate(labelling(change));
            setLabels(false);
          }}
        />
      )}
      {asking && (
        <Question
          act={asking}
          jobs={jobs.filter(asking.suits)}
          onClose={() => setAsking(null)}
          onYes={() => {
            mutate(asking);
            setAsking(null);
          }}
        />
      )}
    </div>
  );
}

interface QuestionProps {
  act: Act;
  jobs: readonly Job[];
  onClose: () => void;
  onYes: () => void;
}

function Question({ act, jobs, onClose, onYes }: QuestionProps) {
  const many = plural(jobs.length, "job");
  return (
    <Dialog title={`${act.title} ${many}?`} onClose={onClose}>
      <p>{act.warning}</p>
      <p className="muted">{named(jobs)}</p>
      <div className="dialog-actions">
        <button type="button" onClick={onClose}>
          Leave {jobs.length === 1 ? "it" : "them"} as {jobs.length === 1 ? "it is" : "they are"}
        </button>
        <button type="button" className="danger solid" onClick={onYes}>
          {act.title} {many}
        </button>
      </div>
    </Dialog>
  );
}

function named(jobs: readonly Job[]): string {
  const first = jobs.slice(0, 8).map((job) => job.name);
  return [...first, ...(jobs.length > 8 ? [`and ${jobs.length - 8} more`] : [])].join(", ");
}
