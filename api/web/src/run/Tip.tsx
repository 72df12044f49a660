/** The values of all charts and what happened at one x, beside the cursor. */
import { duration, number } from "../format";
import { recoveredSteps } from "../history";
import { xWords, type XKind } from "../plot/axes";
import { nearestIndex, type Line } from "../plot/lines";
import { Swatch } from "../plot/Swatch";
import { PhaseBar } from "../parts/PhaseBar";
import type { Placed } from "./happened";
import { unitOf, type MetricLook } from "./looks";

export interface Shown {
  name: string;
  look: MetricLook;
  line: Line | undefined;
}

interface Props {
  x: number;
  perPixel: number;
  kind: XKind;
  shown: readonly Shown[];
  placed: readonly Placed[];
}

const NEAR_PX = 7;

export function Tip({ x, perPixel, kind, shown, placed }: Props) {
  const first = shown.find(({ line }) => line !== undefined)?.line;
  const at = first ? (first.xs[nearestIndex(first.xs, x)] ?? x) : x;
  const near = (other: number): boolean => Math.abs(other - at) <= NEAR_PX * perPixel;
  const generation = placed.findLast((one) => one.kind === "generation" && one.x <= at);
  return (
    <>
      <div className="tooltip-head" data-testid="chart-tooltip">
        {xWords(kind, at)}
        {generation?.kind === "generation" && <span className="muted"> · generation {generation.of.generation}</span>}
      </div>
      <dl className="tooltip-values">
        {shown.map(({ name, look, line }) => {
          const value = line?.ys[nearestIndex(line.xs, at)];
          return (
            <div key={name}>
              <dt>
                <Swatch look={look.look} />
                <span className="clip">{look.label}</span>
              </dt>
              <dd>
                {number(value)} <span className="muted">{unitOf(look, value)}</span>
              </dd>
            </div>
          );
        })}
      </dl>
      {placed.map((one) => {
        if (one.kind === "lost" && near(one.x)) return <LostWords key={one.key} one={one} />;
        if (one.kind === "recovery" && (near(one.x) || (at >= one.x && at <= one.until)))
          return <RecoveryWords key={one.key} one={one} />;
        return null;
      })}
    </>
  );
}

function LostWords({ one: { of } }: { one: Placed & { kind: "lost" } }) {
  return (
    <p className="tooltip-lost">
      Worker <b>{of.worker}</b> lost at step {of.step}
      {of.cause && `: ${of.cause}`}
    </p>
  );
}

function RecoveryWords({ one: { of } }: { one: Placed & { kind: "recovery" } }) {
  return (
    <div className="tooltip-recovery">
      <p>
        Recovered in <b>{duration(of.totalS)}</b>, {recoveredSteps(of.stepsLost)}
      </p>
      <PhaseBar recovery={of} figures />
    </div>
  );
}
