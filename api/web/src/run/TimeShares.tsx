/** Where the time went, over the steps: a stacked area of computing, waiting for the exchange, and recovering. */
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
import { sharesOf, type Shares } from "./shares";

const MOST = 80;
const [HEIGHT, TOP, FOOT] = [150, 8, 24];
/** From below. */
const PARTS = [
  ["rest", "Computing, loading, idle"],
  ["exchange", "Waiting for the exchange"],
  ["recovery", "Recovery"],
] as const;
const COLOUR = { rest: (theme: Theme) => theme.runs[2], exchange: (theme: Theme) => theme.runs[0], recovery: (theme: Theme) => theme.recovery };

interface Props {
  pace: Curve | undefined;
  exchange: Curve | undefined;
  recoveries: readonly Recovery[];
}

export function TimeShares({ pace, exchange, recoveries }: Props) {
  const shares = useMemo(() => sharesOf(pace, exchange, recoveries, MOST), [pace, exchange, recoveries]);
  const [pointed, setPointed] = useState<{ share: Shares; left: number; right: number | null } | null>(null);
  const paint = useCallback(
    (pen: CanvasRenderingContext2D, width: number, height: number, theme: Theme) => paintShares(pen, shares, width, height, theme),
    [shares],
  );
  if (shares.length < 2) return null;
  const point = (at: { x: number; width: number } | null): void => {
    const share = at && shareAt(shares, at.x, at.width);
    setPointed(share && { share, left: at.x + 14, right: at.x > at.width / 2 ? at.width - at.x + 14 : null });
  };
  return (
    <Card title="Where the time goes">
      <div className="lanes">
        <Painted name="Where the time goes" height={HEIGHT} paint={paint} rows={() => rowsOf(shares)} keys={keysOf} onPoint={point}>
          <Legend />
        </Painted>
        {pointed && (
          <div className="tooltip" style={pointed.right === null ? { left: pointed.left } : { right: pointed.right }} aria-hidden="true">
            <div className="tooltip-head">
              Steps {count(pointed.share.from + 1)}–{count(pointed.share.until)}, {duration(pointed.share.seconds)}
            </div>
            <dl className="tooltip-values">
              {[...PARTS].reverse().map(([key, label]) => (
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
        By steps: their time by the clock, of it the share of the recoveries that ended there and the mean share in which workers waited for the
        exchange. Computing, loading and idleness are not told apart by step; the result of the job splits its whole time.
      </p>
    </Card>
  );
}

function Legend() {
  return (
    <ul className="legend charts-legend">
      {PARTS.map(([key, label]) => (
        <li key={key}>
          <i className={`swatch share-${key}`} aria-hidden="true" />
          {label}
        </li>
      ))}
    </ul>
  );
}

function keysOf(theme: Theme): Key[] {
  return PARTS.map(([key, label]) => ({ label, colour: COLOUR[key](theme) ?? theme.muted, alpha: 0.7 }));
}

function shareAt(shares: readonly Shares[], x: number, width: number): Shares | null {
  const { left, right } = sidesOf(width);
  const [first, last] = [shares[0]?.from ?? 0, shares.at(-1)?.until ?? 1];
  const step = first + ((x - left) / (width - left - right)) * (last - first);
  return shares.find((one) => step >= one.from && step <= one.until) ?? null;
}

function paintShares(pen: CanvasRenderingContext2D, shares: readonly Shares[], width: number, height: number, theme: Theme): void {
  const { left, right } = sidesOf(width);
  const [first, last] = [shares[0]?.from ?? 0, shares.at(-1)?.until ?? 1];
  // Whole pixels: no seams.
  const x = (step: number): number => Math.round(left + ((step - first) / (last - first)) * (width - left - right));
  const y = (share: number): number => height - FOOT - share * (height - FOOT - TOP);
  pen.clearRect(0, 0, width, height);
  for (const one of shares) {
    let below = 0;
    for (const [key] of PARTS) {
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

function rowsOf(shares: readonly Shares[]): Cell[][] {
  const rows = shares.map((one): Cell[] => [`${one.from + 1}–${one.until}`, duration(one.seconds), ...PARTS.map(([key]) => percent(one[key]))]);
  return [["Steps", "Time", ...PARTS.map(([, label]) => label)], ...rows];
}
