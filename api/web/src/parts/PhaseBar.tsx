/** What one recovery cost, by phase: a stacked bar and its figures. */
import { duration } from "../format";
import { PHASES, type Recovery } from "../history";

export function PhaseBar({ recovery, figures }: { recovery: Recovery; figures: boolean }) {
  const sum = PHASES.reduce((total, phase) => total + recovery.phases[phase], 0);
  const said = PHASES.map((phase) => `${phase} ${duration(recovery.phases[phase])}`).join(", ");
  return (
    <div className="phases">
      <div className="phase-bar" role="img" aria-label={said}>
        {PHASES.filter((phase) => recovery.phases[phase] > 0).map((phase) => (
          <span
            key={phase}
            className={`phase phase-${phase}`}
            style={{ flexGrow: (100 * recovery.phases[phase]) / sum }}
            title={`${phase} ${duration(recovery.phases[phase])}`}
          />
        ))}
      </div>
      {figures && (
        <dl className="phase-figures">
          {PHASES.map((phase) => (
            <div key={phase}>
              <dt>
                <i className={`swatch phase-${phase}`} aria-hidden="true" />
                {phase}
              </dt>
              <dd>{duration(recovery.phases[phase])}</dd>
            </div>
          ))}
        </dl>
      )}
    </div>
  );
}
