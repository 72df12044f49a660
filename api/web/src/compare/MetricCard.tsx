/** One metric of all runs: its curves, its scale and smoothing, its values as a table and as files. */
import { useCallback, useMemo } from "react";
import { number } from "../format";
import { Card } from "../parts/Card";
import { ScaleControls } from "../plot/Controls";
import { KINDS, type AxisName } from "../plot/curves";
import type { Strip } from "../plot/draw";
import { LinePlot } from "../plot/LinePlot";
import { belowLog, smoothed, type Line, type Range } from "../plot/lines";
import { ValueTable } from "../plot/SaveButtons";
import type { Cell } from "../plot/save";
import { useChange } from "./change";
import { linesOf, type Files, type Run } from "./runs";
import type { Comparison } from "../wire";
import { parseCompare } from "./state";

interface Props {
  name: string;
  answer: Comparison;
  runs: readonly Run[];
  files: Files;
  axis: AxisName;
  zoom: Range | null;
  log: boolean;
  smoothing: number;
  strips: readonly Strip[];
  highlight: string | null;
}

export function MetricCard({ name, answer, runs, files, axis, zoom, log, smoothing, strips, highlight }: Props) {
  const change = useChange();
  const measured = useMemo(() => linesOf(answer, name, runs, axis, files), [answer, name, runs, axis, files]);
  const lines = useMemo(
    () => (smoothing > 0 ? measured.map((line) => ({ ...line, ys: smoothed(line.ys, smoothing) })) : measured),
    [measured, smoothing],
  );
  const zoomed = useCallback((range: Range | null) => change({ zoom: range }), [change]);
  const unseen = log ? belowLog(measured) : 0;
  return (
    <Card title={name} aside={<Controls name={name} log={log} smoothing={smoothing} />} className="metric-card">
      <LinePlot
        name={name}
        lines={lines}
        raw={smoothing > 0 ? measured : NONE}
        strips={strips}
        kind={KINDS[axis]}
        log={log}
        zoom={zoom}
        highlight={highlight}
        onZoom={zoomed}
      />
      {unseen > 0 && <p className="muted plot-note">{number(unseen)} points at or below 0 are not on the logarithmic scale.</p>}
      <ValueTable name={name} rows={() => summary(measured)} />
    </Card>
  );
}

const NONE: readonly Line[] = [];

function Controls({ name, log, smoothing }: { name: string; log: boolean; smoothing: number }) {
  const change = useChange();
  const { state } = parseCompare(window.location.search);
  const flip = (on: boolean): void => change({ log: on ? [...state.log, name] : state.log.filter((one) => one !== name) });
  return (
    <ScaleControls
      log={log}
      smoothing={smoothing}
      onLog={flip}
      onSmoothing={(weight) => change({ smoothing: { ...state.smoothing, [name]: weight } })}
    />
  );
}

/** What there is to say of each curve. */
function summary(lines: readonly Line[]): Cell[][] {
  const rows = lines.map(({ label, ys }): Cell[] => {
    const known = ys.filter(Number.isFinite);
    const [low, high] = [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
    return [label, ...[known.length, known[0], low, high, known.at(-1)].map((value) => number(value))];
  });
  return [["Run", "Points", "First", "Lowest", "Highest", "Last"], ...rows];
}
