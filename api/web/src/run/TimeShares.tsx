/** Where the time went, over the steps: a stacked area of computing, loading, communication, waiting for other workers,
    and recovering. */
import { useCallback, useMemo, useState } from "react";
import { count, duration, percent } from "../format";
import type { Recovery } from "../history";
import { Card } from "../parts/Card";
import { sidesOf, ticks } from "../plot/axes";
import { Painted } from "../plot/Painted";
import type { Theme } from "../plot/palette";
import type { Key } from "../plot/picture";
import type { Cell } from "../plot/save";
import type { Curve } from "../wire";
import { sharesOf, type Shares, type Waits } from "./shares";

const MOST = 80;
const [HEIGHT, TOP, FOOT] = [150, 8, 24];
type Part = readonly ["rest" | "loading" | "exchange" | "idle" | "recovery", string];

/** From below; what nobody tells of is in the part below it. */
function partsOf({ loading, idle }: Waits): Part[] {
  const computing: Part[] = loading ? [["rest", "Computing"], ["loading", "Loading"]] : [["rest", "Computing, loading"]];
  const waits: Part[] = idle ? [["exchange", "Communication"], ["idle", "Idle, waiting for others"]] : [["exchange", "Waiting for the exchange"]];
  return [...computing, ...waits, ["recovery", "Recovery"]];
}

const COLOUR = { rest: (theme: Theme) => theme.runs[2], loading: (theme: Theme) => theme.runs[3], exchange: (theme: Theme) => theme.runs[0], idle: (theme: Theme) => theme.muted, recovery: (theme: Theme) => theme.recovery };

interface Props {
  pace: Curve | undefined;
  waits: Waits;
  recoveries: readonly Recovery[];
}

export function TimeShares({ pace, waits, recoveries }: Props) {
  const { loading, exposed, exchange, idle } = waits;
  // By its curves: the object around them is made anew each time.
  const told = useMemo(() => ({ loading, exposed, exchange, idle }), [loading, exposed, exchange, idle]);
  const shares = useMemo(() => sharesOf(pace, told, recoveries, MOST), [pace, told, recoveries]);
  const parts = useMemo(() => partsOf(told), [told]);
  const [pointed, setPointed] = useState<{ share: Shares; left: number; right: number | null } | null>(null);
  const paint = useCallback(
    (pen: CanvasRenderingContext2D, width: number, height: number, theme: Theme) => paintShares(pen, shares, parts, width, height, theme),
    [shares, parts],
  );
  if (shares.length < 2) return null;
  const point = (at: { x: number; width: number } | null): void => {
    const share = at && shareAt(shares, at.x, at.width);
    setPointed(share && { share, left: at.x + 14, right: at.x > at.width / 2 ? at.width - at.x + 14 : null });
  };
  return (
    <Card title="Where the time goes">
      <div className="lanes">
        <Painted name="Where the time goes" height={HEIGHT} paint={paint} rows={() => rowsOf(shares, parts)} keys={(theme) => keysOf(parts, theme)} onPoint={point}>
          <Legend parts={parts} />
        </Painted>
        {pointed && (
          <div className="tooltip" style={pointed.right === null ? { left: pointed.left } : { right: pointed.right }} aria-hidden="true">
            <div className="tooltip-head">
              Steps {count(pointed.share.from + 1)}–{count(pointed.share.until)}, {duration(pointed.share.seconds)}
            </div>
            <dl className="tooltip-values">
              {[...parts].reverse().map(([key, label]) => (
                <div key={key}>
                  <dt>
                    <i className={`swatch share-${key}`} aria-hidden="true" />
                    {label}
                  </dt>
                  <dd>{percent(pointed.share[key])}</dd>
                </div>
              ))}
            </dl>
          </div>
        )}
      </div>
      <p className="muted plot-note">
        By steps: their time by the clock, of it the share of the recoveries that ended there and the mean shares of waits: for the exchange
        {loading && ", for batches"}
        {idle && ", and, as the mean over the workers, for those that came to it later"}. Who waits for a place in the group is in no step; the result of
        the job has that as idle time.
      </p>
    </Card>
  );
}

function Legend({ parts }: { parts: readonly Part[] }) {
  return (
    <ul className="legend charts-legend">
      {parts.map(([key, label]) => (
        <li key={key}>
          <i className={`swatch share-${key}`} aria-hidden="true" />
          {label}
        </li>
      ))}
    </ul>
  );
}

function keysOf(parts: readonly Part[], theme: Theme): Key[] {
  return parts.map(([key, label]) => ({ label, colour: COLOUR[key](theme) ?? theme.muted, alpha: 0.7 }));
}

function shareAt(shares: readonly Shares[], x: number, width: number): Shares | null {
  const { left, right } = sidesOf(width);
  const [first, last] = [shares[0]?.from ?? 0, shares.at(-1)?.until ?? 1];
  const step = first + ((x - left) / (width - left - right)) * (last - first);
  return shares.find((one) => step >= one.from && step <= one.until) ?? null;
}

function paintShares(pen: CanvasRenderingContext2D, shares: readonly Shares[], parts: readonly Part[], width: number, height: number, theme: Theme): void {
  const { left, right } = sidesOf(width);
  const [first, last] = [shares[0]?.from ?? 0, shares.at(-1)?.until ?? 1];
  // Whole pixels: no seams.
  const x = (step: number): number => Math.round(left + ((step - first) / (last - first)) * (width - left - right));
  const y = (share: number): number => height - FOOT - share * (height - FOOT - TOP);
  pen.clearRect(0, 0, width, height);
  for (const one of shares) {
    let below = 0;
    for (const [key] of parts) {
      pen.fillStyle = COLOUR[key](theme) ?? theme.muted;
      pen.globalAlpha = 0.7;
      pen.fillRect(x(one.from), y(below + one[key]), x(one.until) - x(one.from), y(below) - y(below + one[key]));
      below += one[key];
    }
  }
  pen.globalAlpha = 1;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = theme.muted;
  pen.textAlign = "right";
  for (const share of [0, 0.5, 1]) pen.fillText(percent(share, 0), left - 6, y(share) + 4);
  pen.textAlign = "center";
  for (const step of ticks(first, last, Math.max(2, Math.floor(width / 130)))) pen.fillText(count(step), Math.min(x(step), width - 20), height - 7);
}

function rowsOf(shares: readonly Shares[], parts: readonly Part[]): Cell[][] {
  const rows = shares.map((one): Cell[] => [`${one.from + 1}–${one.until}`, duration(one.seconds), ...parts.map(([key]) => percent(one[key]))]);
  return [["Steps", "Time", ...parts.map(([, label]) => label)], ...rows];
}
