/** What every lost worker cost, phase by phase. */
import { duration, plural } from "../format";
import { PHASES, type Recovery } from "../history";
import { PhaseBar } from "./PhaseBar";

export function Recoveries({ recoveries }: { recoveries: readonly Recovery[] }) {
  if (recoveries.length === 0) return <p className="muted pad">No worker was lost.</p>;
  return (
    <>
      <ol className="recoveries" data-testid="recoveries">
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
                  {plural(one.stepsLost, "step")} lost
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
