/** What one can do to a job that has not ended: pause it, take it up again, resize it, cancel it. */
import { useState, type SubmitEvent } from "react";
import { ApiError, cancel, pause, resize, resume } from "../api";
import { hasEnded, workerBounds, type Job } from "../wire";
import { Dialog } from "./Dialog";
import { Notice } from "./Notice";

export function Actions({ job, onChange }: { job: Job; onChange: () => void }) {
  const [open, setOpen] = useState<"resize" | "cancel" | null>(null);
  const done = (): void => {
    setOpen(null);
    onChange();
  };
  if (hasEnded(job.state)) return null;
  const stopping = job.state === "stopping";
  return (
    <div className="actions">
      <PauseOrResume job={job} disabled={stopping} onDone={onChange} />
      <button type="button" disabled={stopping} onClick={() => setOpen("resize")}>
        Resize…
      </button>
      <button type="button" className="danger" disabled={stopping} onClick={() => setOpen("cancel")}>
        Cancel…
      </button>
      {open === "resize" && <Resize job={job} onClose={() => setOpen(null)} onDone={done} />}
      {open === "cancel" && <Cancel job={job} onClose={() => setOpen(null)} onDone={done} />}
    </div>
  );
}

function PauseOrResume({ job, disabled, onDone }: { job: Job; disabled: boolean; onDone: () => void }) {
  const paused = job.state === "paused";
  const { run, busy, error } = useAction(() => (paused ? resume(job.id) : pause(job.id)), onDone);
  return (
    <button type="button" disabled={disabled || busy} onClick={run} title={error?.message}>
      {paused ? "Resume" : "Pause"}
    </button>
  );
}

interface Question {
  job: Job;
  onClose: () => void;
  onDone: () => void;
}

function Cancel({ job, onClose, onDone }: Question) {
  const { run, busy, error } = useAction(() => cancel(job.id), onDone);
  return (
    <Dialog title={`Cancel ${job.name}?`} onClose={onClose}>
      <p>The job stops after its current step and cannot be resumed. Its metrics, events and logs are kept.</p>
      {error && (
        <Notice tone="bad" title={error.message}>
          <p>{error.hint}</p>
        </Notice>
      )}
      <div className="dialog-actions">
        <button type="button" onClick={onClose}>
          Keep it running
        </button>
        <button type="button" className="danger solid" disabled={busy} onClick={run}>
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
  const { run, busy, error } = useAction(() => resize(job.id, Number(min), Number(max)), onDone);
  const send = (event: SubmitEvent): void => {
    event.preventDefault();
    if (wrong === null) run();
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
        {error && (
          <Notice tone="bad" title={error.message}>
            {error.findings.map((one) => (
              <p key={one.pointer}>
                <code>{one.pointer}</code> {one.message}
              </p>
            ))}
            <p>{error.hint}</p>
          </Notice>
        )}
        <div className="dialog-actions">
          <button type="button" onClick={onClose}>
            Leave unchanged
          </button>
          <button type="submit" className="primary" disabled={busy || wrong !== null}>
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

function useAction(act: () => Promise<unknown>, onDone: () => void) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const done = (): void => {
    setBusy(false);
    onDone();
  };
  const run = (): void => {
    setBusy(true);
    setError(null);
    act().then(done, (fault: unknown) => {
      setBusy(false);
      setError(fault instanceof ApiError ? fault : new ApiError({ status: 0, detail: String(fault) }));
    });
  };
  return { run, busy, error };
}
