/** Deletes a job that has ended, with all that is kept of it. */
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { remove } from "../api";
import { Dialog } from "../parts/Dialog";
import type { Question } from "./question";
import { Refusal } from "./Refusal";

export function Delete({ job, onClose }: Pick<Question, "job" | "onClose">) {
  const navigate = useNavigate();
  const { mutate, isPending, error } = useMutation({
    mutationFn: () => remove(job.id),
    onSuccess: () => navigate({ to: "/jobs" }),
  });
  return (
    <Dialog title={`Delete ${job.name}?`} onClose={onClose}>
      <p>Its metrics, events, logs and files are deleted, and cannot be brought back.</p>
      <Refusal error={error} />
      <div className="dialog-actions">
        <button type="button" onClick={onClose}>
          Keep it
        </button>
        <button type="button" className="danger solid" disabled={isPending} onClick={() => mutate()}>
          Delete the job
        </button>
      </div>
    </Dialog>
  );
}
