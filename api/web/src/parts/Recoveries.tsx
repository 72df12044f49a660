/** What every lost worker cost, phase by phase. */
import { duration, plural } from "../format";
import { PHASES, recoveredSteps, type Recovery } from "../history";
import { PhaseBar } from "./PhaseBar";

interface Props {
  recoveries: readonly Recovery[];
  /** How many workers were lost, and in how many attempts. */
  lost: number;
  attempts: number;
}

export function Recoveries({ recoveries, lost, attempts }: Props) {
  if (recoveries.length === 0) return <p className="muted pad">{none(lost, attempts)}</p>;
  return (
    <>
      <ol className="recoveries" tabIndex={0} aria-label="Recoveries" data-testid="recoveries">
        {[...recoveries].reverse().map((one) => (
          <li key={one.seq}>
            <div className="recovery-head">
              <span>
                <b>{one.workers.join(", ") || "Worker"}</b> at step {one.step.toLocaleString("en-US")}
                {one.cause && <span className="muted"> · {one.cause}</span>}
              </span>
              <span className="recovery-total">
                <b>{duration(one.totalS)}</b>
                <span className={one.stepsLost === 0 ? "good" : "bad"}>
                  {" "}
                  {recoveredSteps(one.stepsLost)}
                </span>
              </span>
            </div>
            <PhaseBar recovery={one} figures={false} />
          </li>
        ))}
      </ol>
      <ul className="legend" aria-label="Phases">
        {PHASES.map((phase) => (
          <li key={phase}>
            <i className={`swatch phase-${phase}`} aria-hidden="true" />
            {phase}
          </li>
        ))}
      </ul>
    </>
  );
}

function none(lost: number, attempts: number): string {
  const within = attempts > 1 ? ` in any of the ${attempts} attempts` : "";
  if (lost > 0) return `${plural(lost, "worker")} lost, no recovery${within}.`;
  return attempts > 1 ? `No recovery${within}.` : "No worker was lost.";
}
