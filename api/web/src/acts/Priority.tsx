/** Changing the priority of a job that has not ended. */
import { useMutation } from "@tanstack/react-query";
import { useState, type SubmitEvent } from "react";
import { prioritize } from "../api";
import { Dialog } from "../parts/Dialog";
import { priorityOf } from "../wire";
import type { Question } from "./question";
import { Refusal } from "./Refusal";

const MOST = 1000;

export function Priority({ job, onClose, onDone }: Question) {
  const [text, setText] = useState(String(priorityOf(job.spec)));
  const value = Number(text);
  const wrong = text.trim() === "" || !Number.isInteger(value) || Math.abs(value) > MOST;
  const { mutate, isPending, error } = useMutation({ mutationFn: () => prioritize(job.id, value), onSuccess: onDone });
  const send = (event: SubmitEvent): void => {
    event.preventDefault();
    if (!wrong) mutate();
  };
  return (
    <Dialog title={`Priority of ${job.name}`} onClose={onClose}>
      <p>Jobs of a higher priority are served first, and are the first to take surplus workers. A priority above 0 requires the operator role, since it takes room from others.</p>
      <form onSubmit={send}>
        <label>
          Priority
          <input type="number" name="priority" min={-MOST} max={MOST} step={1} value={text} onChange={(event) => setText(event.target.value)} />
        </label>
        <p className="field-error" aria-live="polite">
          {wrong && `It must be a whole number from −${MOST} to ${MOST}.`}
        </p>
        <Refusal error={error} />
        <div className="dialog-actions">
          <button type="button" onClick={onClose}>
            Leave unchanged
          </button>
          <button type="submit" className="primary" disabled={isPending || wrong}>
            Set the priority
          </button>
        </div>
      </form>
    </Dialog>
  );
}
