/** What one can do to a job: clone or label it; once it has ended, retry or delete it; before, pause, resume, resize, cancel it, and more. */
import { useMutation } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState, type SubmitEvent } from "react";
import { Delete } from "../acts/Delete";
import { Faults, MayFault } from "../acts/Faults";
import { Priority } from "../acts/Priority";
import type { Question } from "../acts/question";
import { Refusal } from "../acts/Refusal";
import { Retry } from "../acts/Retry";
import { cancel, pause, relabel, resize, resume } from "../api";
import type { LabelChange } from "../labels";
import { hasEnded, workerBounds, type Job } from "../wire";
import { Dialog } from "./Dialog";
import { LabelDialog } from "./LabelDialog";

export function Actions({ job, onChange }: { job: Job; onChange: () => void }) {
  const [open, setOpen] = useState<"labels" | "resize" | "priority" | "faults" | "cancel" | "retry" | "delete" | null>(null);
  const done = (): void => {
    setOpen(null);
    onChange();
  };
  const stopping = job.state === "stopping";
  return (
    <div className="actions">
      <Link to="/submit" search={{ from: job.id }} className="button">
        Clone
      </Link>
      <button type="button" onClick={() => setOpen("labels")}>
        Labels…
      </button>
      {hasEnded(job.state) ? (
        <>
          <button type="button" onClick={() => setOpen("retry")}>
            Retry…
          </button>
          <button type="button" className="danger" onClick={() => setOpen("delete")}>
            Delete…
          </button>
        </>
      ) : (
        <>
          <PauseOrResume job={job} disabled={stopping} onDone={onChange} />
          <button type="button" disabled={stopping} onClick={() => setOpen("resize")}>
            Resize…
          </button>
          <button type="button" disabled={stopping} onClick={() => setOpen("priority")}>
            Priority…
          </button>
          <MayFault job={job} onOpen={() => setOpen("faults")} />
          <button type="button" className="danger" disabled={stopping} onClick={() => setOpen("cancel")}>
            Cancel…
          </button>
        </>
      )}
      {open === "labels" && <Labels job={job} onClose={() => setOpen(null)} onDone={done} />}
      {open === "resize" && <Resize job={job} onClose={() => setOpen(null)} onDone={done} />}
      {open === "priority" && <Priority job={job} onClose={() => setOpen(null)} onDone={done} />}
      {open === "faults" && <Faults job={job} onClose={() => setOpen(null)} onDone={done} />}
      {open === "retry" && <Retry job={job} onClose={() => setOpen(null)} />}
      {open === "delete" && <Delete job={job} onClose={() => setOpen(null)} />}
      {open === "cancel" && <Cancel job={job} onClose={() => setOpen(null)} onDone={done} />}
    </div>
  );
}

function PauseOrResume({ job, disabled, onDone }: { job: Job; disabled: boolean; onDone: () => void }) {
  const paused = job.state === "paused";
  const { mutate, isPending, error } = useMutation({
    mutationFn: () => (paused ? resume(job.id) : pause(job.id)),
    onSuccess: onDone,
  });
  return (
    <button type="button" disabled={disabled || isPending} onClick={() => mutate()} title={error?.message}>
      {paused ? "Resume" : "Pause"}
    </button>
  );
}

function Labels({ job, onClose, onDone }: Question) {
  const { mutate, isPending, error } = useMutation({
    mutationFn: (change: LabelChange) => relabel(job.id, change),
    onSuccess: onDone,
  });
  const refused = <Refusal error={error} />;
  return (
    <LabelDialog title={`Labels of ${job.name}`} jobs={[job]} pending={isPending} refused={refused} onClose={onClose} onYes={mutate} />
  );
}

function Cancel({ job, onClose, onDone }: Question) {
  const { mutate, isPending, error } = useMutation({ mutationFn: () => cancel(job.id), onSuccess: onDone });
  return (
    <Dialog title={`Cancel ${job.name}?`} onClose={onClose}>
      <p>The job stops after its current step and cannot be resumed. Its metrics, events and logs are kept.</p>
      <Refusal error={error} />
      <div className="dialog-actions">
        <button type="button" onClick={onClose}>
          Keep it running
        </button>
        <button type="button" className="danger solid" disabled={isPending} onClick={() => mutate()}>
          Cancel the job
        </button>
      </div>
    </Dialog>
  );
}

function Resize({ job, onClose, onDone }: Question) {
  const now = workerBounds(job.spec);
  const [min, setMin] = useState(String(now.min));
  const [max, setMax] = useState(String(now.max));
  const wrong = resizeFault(Number(min), Number(max));
  const { mutate, isPending, error } = useMutation({
    mutationFn: () => resize(job.id, Number(min), Number(max)),
    onSuccess: onDone,
  });
  const send = (event: SubmitEvent): void => {
    event.preventDefault();
    if (wrong === null) mutate();
  };
  return (
    <Dialog title={`Resize ${job.name}`} onClose={onClose}>
      <p>The change takes effect between two steps, and no work is lost. Workers running now: {job.world_size}.</p>
      <form onSubmit={send}>
        <div className="field-row">
          <label>
            Min workers
            <input
              type="number"
              name="min"
              min={1}
              value={min}
              onChange={(event) => setMin(event.target.value)}
            />
          </label>
          <label>
            Max workers
            <input
              type="number"
              name="max"
              min={1}
              value={max}
              onChange={(event) => setMax(event.target.value)}
            />
          </label>
        </div>
        <p className="field-error" aria-live="polite">
          {wrong}
        </p>
        <Refusal error={error} />
        <div className="dialog-actions">
          <button type="button" onClick={onClose}>
            Leave unchanged
          </button>
          <button type="submit" className="primary" disabled={isPending || wrong !== null}>
            Resize
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function resizeFault(min: number, max: number): string | null {
  if (![min, max].every((value) => Number.isInteger(value) && value >= 1))
    return "Both must be whole numbers, 1 or more.";
  return min > max ? "The minimum cannot be larger than the maximum." : null;
}
