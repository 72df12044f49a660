/** Submitting the job file of a job that has ended once more. */
import { useMutation } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { newKey, submit } from "../api";
import { Dialog } from "../parts/Dialog";
import type { Question } from "./question";
import { Refusal } from "./Refusal";

export function Retry({ job, onClose }: Pick<Question, "job" | "onClose">) {
  const navigate = useNavigate();
  // One for the question: an answer that was lost is asked for again, and starts nothing twice.
  const [key] = useState(newKey);
  const { mutate, isPending, error } = useMutation({
    mutationFn: () => submit(job.spec, key),
    onSuccess: ({ id }) => navigate({ to: "/jobs/$id", params: { id } }),
  });
  return (
    <Dialog title={`Retry ${job.name}?`} onClose={onClose}>
      <p>
        A new job with the same job file is submitted, which begins at step 0. To change something first, or to begin with a checkpoint, use{" "}
        <Link to="/submit" search={{ from: job.id }}>
          Clone
        </Link>{" "}
        or <b>Start from here</b>.
      </p>
      <Refusal error={error} />
      <div className="dialog-actions">
        <button type="button" onClick={onClose}>
          Do nothing
        </button>
        <button type="button" className="primary" disabled={isPending} onClick={() => mutate()}>
          Submit it again
        </button>
      </div>
    </Dialog>
  );
}
