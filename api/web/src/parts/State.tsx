/** A state as a colour and a word, and how far a job has come. */
import { count, percent } from "../format";
import type { Progress } from "../wire";

export function StateBadge({ state }: { state: string }) {
  return (
    <span className={`state state-${state}`} data-state={state}>
      <i aria-hidden="true" />
      {state}
    </span>
  );
}

export function ProgressBar({ progress, state }: { progress: Progress; state: string }) {
  const { step, total_steps: total } = progress;
  const share = total ? Math.min(1, step / total) : 0;
  return (
    <div className={`progress bar-${state}`}>
      <div
        className="progress-track"
        role="progressbar"
        aria-label="Steps"
        aria-valuemin={0}
        aria-valuemax={total ?? undefined}
        aria-valuenow={total === null ? undefined : step}
        aria-valuetext={total === null ? `step ${step}` : `step ${step} of ${total}`}
      >
        <span style={{ width: percent(share, 2).replace(" ", "") }} />
      </div>
      <span className="progress-text">
        <b data-testid="step">{count(step)}</b>
        {total !== null && <span className="muted"> / {count(total)}</span>}
      </span>
    </div>
  );
}
