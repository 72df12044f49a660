/** What a job's workers and their nodes use over time: processors, memory, disks, networks, GPUs. */
import { useCallback, useMemo, useState } from "react";
import { number } from "../format";
import { Card } from "../parts/Card";
import { ErrorNotice } from "../parts/Notice";
import { KINDS } from "../plot/curves";
import { nearestIndex, type Line, type Range } from "../plot/lines";
import { LinePlot } from "../plot/LinePlot";
import { Swatch } from "../plot/Swatch";
import type { ChartView } from "../plot/view";
import type { NodeNames } from "../nodes";
import type { Job } from "../wire";
import type { useSystem } from "./reading";
import { chartsOf, hasGaps, unmetOf, type SystemChart } from "./system";

const HEIGHT = 150;
const MOST_NAMED = 24;

interface Props {
  job: Job;
  read: ReturnType<typeof useSystem>;
  /** In the order of their colours. */
  nodes: readonly string[];
  names: NodeNames;
  /** The stretch of time that is zoomed in to. */
  zoom: Range | null;
  onChange: (part: Partial<ChartView>) => void;
}

export function System({ job, read: { data, failureReason }, nodes, names, zoom, onChange }: Props) {
  const [at, setAt] = useState<number | null>(null);
  const charts = useMemo(() => chartsOf(data?.series ?? [], nodes, names), [data, nodes, names]);
  const zoomed = useCallback((to: Range | null) => onChange(to ? { axis: "wall", zoom: to } : { zoom: null }), [onChange]);
  if (data === undefined) return failureReason ? <ErrorNotice error={failureReason} stale={false} /> : null;
  const unmet = unmetOf(data.series, names);
  const [workers, others] = [charts.filter((one) => one.kind === "worker"), charts.filter((one) => one.kind === "node")];
  const drawn = (chart: SystemChart) => (
    <Chart key={chart.title} of={job.name} chart={chart} zoom={zoom} at={at} onAt={setAt} onZoom={zoomed} />
  );
  return (
    <Card title="System" className="system-card">
      {failureReason && <ErrorNotice error={failureReason} stale />}
      {charts.length === 0 && <p className="pad muted">Nothing was measured yet: a sample is taken every five seconds.</p>}
      {workers.map(drawn)}
      {others.length > 0 && (
        <details className="spec system-nodes">
          <summary>
            <h3>Nodes</h3>
          </summary>
          {others.map(drawn)}
        </details>
      )}
      {charts.length > 0 && (
        <p className="muted plot-note">
          Of each worker with all that it has started. {hasGaps(data.series) && "Where a line is broken nothing was measured. "}
          {unmet.length > 0 && `Not measured: ${unmet.join("; ")}.`}
        </p>
      )}
    </Card>
  );
}

interface ChartProps {
  of: string;
  chart: SystemChart;
  zoom: Range | null;
  at: number | null;
  onAt: (x: number | null) => void;
  onZoom: (range: Range | null) => void;
}

function Chart({ of, chart: { title, unit, lines }, zoom, at, onAt, onZoom }: ChartProps) {
  const [highlight, setHighlight] = useState<string | null>(null);
  const value = ({ xs, ys }: Line): number | undefined => ys[at === null ? ys.length - 1 : nearestIndex(xs, at)];
  return (
    <section className="metric-chart system-chart" aria-label={title}>
      <div className="metric-head">
        <h3>{title}</h3>
        <span className="muted">{unit}</span>
      </div>
      <LinePlot
        name={title}
        of={of}
        things={unit}
        lines={lines}
        kind={KINDS.wall}
        zero
        height={HEIGHT}
        zoom={zoom}
        highlight={highlight}
        onZoom={onZoom}
        at={at}
        onAt={onAt}
      />
      {lines.length <= MOST_NAMED && (
        <ul className="legend charts-legend">
          {lines.map((line) => (
            <li key={line.id} title={line.id} onPointerEnter={() => setHighlight(line.id)} onPointerLeave={() => setHighlight(null)}>
              <Swatch look={line.look} />
              {line.label} <span className="muted">{number(value(line))}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
