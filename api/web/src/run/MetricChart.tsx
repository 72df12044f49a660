/** One metric of a job: its value now, its curve, its scale and smoothing, its place among the charts. */
import { useCallback, useMemo, type ReactNode } from "react";
import { number } from "../format";
import { Popup } from "../parts/Popup";
import type { XKind } from "../plot/axes";
import { ScaleControls } from "../plot/Controls";
import { belowLog, nearestIndex, smoothed, type Line, type Range } from "../plot/lines";
import { LinePlot } from "../plot/LinePlot";
import type { Mark } from "../plot/marks";
import type { ChartView } from "../plot/view";
import { unitOf } from "./looks";
import type { Shown } from "./Tip";
import { moved } from "./view";

interface Props {
  /** The job's name. */
  of: string;
  chart: Shown;
  view: ChartView;
  kind: XKind;
  x: Range | null;
  marks: readonly Mark[];
  at: number | null;
  live: boolean;
  onAt: (x: number | null) => void;
  tip: (x: number, perPixel: number) => ReactNode;
  onChange: (part: Partial<ChartView>) => void;
}

const NONE: readonly Line[] = [];

export function MetricChart({ of, chart, view, kind, x, marks, at, live, onAt, tip, onChange }: Props) {
  const { name, look, line } = chart;
  const log = view.log.includes(name);
  const smoothing = look.holds ? 0 : (view.smoothing[name] ?? 0);
  const measured = useMemo(() => (line ? [line] : NONE), [line]);
  const lines = useMemo(
    () => (smoothing > 0 ? measured.map((one) => ({ ...one, ys: smoothed(one.ys, smoothing) })) : measured),
    [measured, smoothing],
  );
  const zoomed = useCallback((zoom: Range | null) => onChange({ zoom }), [onChange]);
  const value = line?.ys[at === null ? line.ys.length - 1 : nearestIndex(line.xs, at)];
  const unseen = log ? belowLog(measured) : 0;
  return (
    <section className="metric-chart" aria-label={look.label}>
      <div className="metric-head">
        <h3>{look.label}</h3>
        <span className="muted">
          {value === undefined ? "" : `${number(value)} ${unitOf(look, value)}`}
        </span>
        <Options chart={chart} view={view} log={log} smoothing={smoothing} onChange={onChange} />
      </div>
      <LinePlot
        name={look.label}
        of={of}
        lines={lines}
        raw={smoothing > 0 ? measured : NONE}
        marks={marks}
        kind={kind}
        log={log}
        zero={look.zero === true}
        whole={look.whole === true}
        height={look.height}
        zoom={x}
        highlight={null}
        onZoom={zoomed}
        at={at}
        onAt={onAt}
        tip={tip}
        empty={live ? "No values yet." : "No values here."}
      />
      {unseen > 0 && <p className="muted plot-note">{number(unseen)} points at or below 0 are not on the logarithmic scale.</p>}
    </section>
  );
}

interface OptionsProps {
  chart: Shown;
  view: ChartView;
  log: boolean;
  smoothing: number;
  onChange: (part: Partial<ChartView>) => void;
}

function Options({ chart: { name, look }, view, log, smoothing, onChange }: OptionsProps) {
  const { names } = view;
  const place = names.indexOf(name);
  return (
    <Popup title="Options" of={look.label} count={Number(log) + Number(smoothing > 0)} className="popup-chart">
      <div className="popup-parts">
        {!look.holds && (
          <ScaleControls
            log={log}
            smoothing={smoothing}
            onLog={(on) => onChange({ log: on ? [...view.log, name] : view.log.filter((one) => one !== name) })}
            onSmoothing={(weight) => onChange({ smoothing: { ...view.smoothing, [name]: weight } })}
          />
        )}
        <div className="actions">
          <button type="button" className="small" disabled={place <= 0} onClick={() => onChange({ names: moved(names, name, -1) })}>
            Move up
          </button>
          <button
            type="button"
            className="small"
            disabled={place >= names.length - 1}
            onClick={() => onChange({ names: moved(names, name, 1) })}
          >
            Move down
          </button>
          <button
            type="button"
            className="small"
            disabled={names.length === 1}
            onClick={() => onChange({ names: names.filter((one) => one !== name) })}
          >
            Hide
          </button>
        </div>
      </div>
    </Popup>
  );
}
