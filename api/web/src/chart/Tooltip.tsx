/** The values and happenings at one step, beside the crosshair. */
import { duration, number, plural } from "../format";
import type { Boundary, Lost, Recovery } from "../history";
import { PhaseBar } from "../parts/PhaseBar";
import { unitOf, type Layout } from "./layout";
import { nearest, runs } from "./scale";

export interface Happenings {
  generations: readonly Boundary[];
  recoveries: readonly Recovery[];
  lost: readonly Lost[];
}

const NEAR_PX = 7;

export function Tooltip({ layout, step, happened }: { layout: Layout; step: number; happened: Happenings }) {
  const x = layout.x.at(step);
  const near = (other: number): boolean => Math.abs(layout.x.at(other) - x) <= NEAR_PX;
  const lost = happened.lost.filter((one) => near(one.step));
  const recovered = happened.recoveries.filter(
    (one) => near(one.step) || (step >= one.step && step <= one.until),
  );
  const generation = happened.generations.filter((one) => one.step <= step).at(-1);
  const onRight = x < (layout.left + layout.right) / 2;
  const style = onRight ? { left: x + 14 } : { right: layout.width - x + 14 };
  return (
    <div className="tooltip" style={style} data-testid="chart-tooltip">
      <div className="tooltip-head">
        Step <b>{Math.round(step).toLocaleString("en-US")}</b>
        {generation && <span className="muted"> · generation {generation.generation}</span>}
      </div>
      <dl className="tooltip-values">
        {layout.panels.map(({ series }) => {
          const value = nearest(runs(series.points).at(-1) ?? [], step)?.value;
          return (
            <div key={series.name} className={`metric-${series.name.replace(/\W/g, "-")}`}>
              <dt>
                <i className="swatch" aria-hidden="true" />
                {series.label}
              </dt>
              <dd>
                {number(value)} <span className="muted">{unitOf(series, value)}</span>
              </dd>
            </div>
          );
        })}
      </dl>
      {lost.map((one) => (
        <p key={one.seq} className="tooltip-lost">
          Worker <b>{one.worker}</b> lost at step {one.step}
          {one.cause && `: ${one.cause}`}
        </p>
      ))}
      {recovered.map((one) => (
        <div key={one.seq} className="tooltip-recovery">
          <p>
            Recovered in <b>{duration(one.totalS)}</b>, {plural(one.stepsLost, "step")} lost
          </p>
          <PhaseBar recovery={one} figures />
        </div>
      ))}
    </div>
  );
}
