/** The trace of a job, opened: what each thread of each worker did when. A stretch is dragged over to come closer. */
import { useCallback, useMemo, useRef, useState, type PointerEvent } from "react";
import { duration } from "../format";
import { ticks } from "../plot/axes";
import type { Range } from "../plot/lines";
import { Painted } from "../plot/Painted";
import type { Theme } from "../plot/palette";
import { rowsOf, sumsOf, wholeOf, within, type Row, type Span } from "./trace";

const [LEFT, TOP, RIGHT, FOOT, ROW] = [112, 4, 10, 22, 17];
const KINDS = ["step", "exposed", "forward", "idle", "backward"];
const seconds = (us: number): string => duration(us / 1e6);

export function TraceView({ text }: { text: string }) {
  const rows = useMemo(() => rowsOf(text), [text]);
  const whole = useMemo(() => wholeOf(rows), [rows]);
  const [stretch, setStretch] = useState(whole);
  const [said, setSaid] = useState("");
  const begun = useRef<number | null>(null);
  const paint = useCallback(
    (pen: CanvasRenderingContext2D, width: number, height: number, theme: Theme) => paintTrace(pen, rows, stretch, { width, height }, theme),
    [rows, stretch],
  );
  const [from, until] = stretch;
  const timeAt = (x: number, width: number): number => from + ((x - LEFT) / (width - LEFT - RIGHT)) * (until - from);
  const point = (at: { x: number; y: number; width: number } | null): void => {
    const [row, time] = [rows[Math.floor(((at?.y ?? 0) - TOP) / ROW)], at ? timeAt(at.x, at.width) : NaN];
    const span = row && within(row, [time, time + 1e-3])[0];
    setSaid(row && span ? wordsOf(row, span) : "");
  };
  const drop = ({ nativeEvent: { offsetX }, target }: PointerEvent): void => {
    const [first, width] = [begun.current, (target as HTMLElement).clientWidth];
    begun.current = null;
    if (first === null || Math.abs(offsetX - first) < 6) return;
    setStretch([timeAt(Math.min(first, offsetX), width), timeAt(Math.max(first, offsetX), width)]);
  };
  /** Moves by a share of the stretch, which becomes so many times as long. */
  const move = (by: number, times: number) => () => {
    const [middle, half] = [(from + until) / 2 + by * (until - from), ((until - from) * times) / 2];
    setStretch([middle - half, middle + half]);
  };
  const moves = { Earlier: move(-0.5, 1), Later: move(0.5, 1), Closer: move(0, 0.5), "Further away": move(0, 2), "Show all": () => setStretch(whole) };
  if (rows.length === 0) return <p className="muted pad">The trace has no spans.</p>;
  return (
    <>
      <div className="filters">
        {Object.entries(moves).map(([label, act]) => (
          <button key={label} type="button" className="small" onClick={act}>
            {label}
          </button>
        ))}
        <span className="muted push" role="status">{`${seconds(until - from)} of ${seconds(whole[1] - whole[0])}`}</span>
      </div>
      <div className="trace-picture" onPointerDown={({ nativeEvent }) => (begun.current = nativeEvent.offsetX)} onPointerUp={drop}>
        <Painted name="Trace" height={TOP + rows.length * ROW + FOOT} paint={paint} rows={() => tableOf(rows, stretch)} keys={() => []} onPoint={point}>
          <p className="muted plot-note">{said || "Point at a span; drag over a stretch to come closer."}</p>
        </Painted>
      </div>
    </>
  );
}

function paintTrace(pen: CanvasRenderingContext2D, rows: readonly Row[], [from, until]: Range, size: { width: number; height: number }, theme: Theme): void {
  const x = (time: number): number => LEFT + ((Math.min(until, Math.max(from, time)) - from) / (until - from)) * (size.width - LEFT - RIGHT);
  pen.clearRect(0, 0, size.width, size.height);
  pen.font = "11px system-ui, sans-serif";
  rows.forEach((row, at) => {
    const y = TOP + at * ROW;
    if (row.depth === 0) text(pen, row.thread, 2, y + 12, LEFT - 8, theme.muted);
    let drawn = -1;
    for (const span of within(row, [from, until])) {
      const [left, right] = [x(span.from), Math.max(x(span.from) + 1, x(span.until) - 0.5)];
      // Many in one pixel are one.
      if (right < drawn + 0.5) continue;
      drawn = right;
      pen.globalAlpha = 0.55;
      pen.fillStyle = colourOf(span.name, theme);
      pen.fillRect(left, y + 2, right - left, ROW - 3);
      pen.globalAlpha = 1;
      if (right - left > 34) text(pen, span.name, left + 3, y + 13, right - left - 5, theme.ink);
    }
  });
  for (const time of ticks(from / 1e6, until / 1e6, Math.max(2, Math.floor(size.width / 200)))) text(pen, duration(time), Math.min(x(time * 1e6) - 12, size.width - 44), size.height - 6, 90, theme.muted);
}

function text(pen: CanvasRenderingContext2D, words: string, x: number, y: number, most: number, colour: string): void {
  pen.fillStyle = colour;
  pen.fillText(words, x, y, most);
}

function colourOf(name: string, theme: Theme): string {
  const kind = KINDS.findIndex((one) => name.startsWith(one));
  return (name === "recovery" ? theme.recovery : theme.runs[kind < 0 ? 5 : kind]) ?? theme.muted;
}

function wordsOf({ thread }: Row, { name, from, until, args }: Span): string {
  return [`${thread}: ${name}, ${seconds(until - from)}`, ...Object.entries(args).map(([key, value]) => `${key} ${String(value)}`)].join(" · ");
}

function tableOf(rows: readonly Row[], stretch: Range) {
  return [["Thread", "Name", "Times", "Together"], ...sumsOf(rows, stretch).map(({ thread, name, count, us }) => [thread, name, count, seconds(us)])];
}
