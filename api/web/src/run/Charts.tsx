/** The charts of one job under one x axis, with what happened to it: chosen, arranged and zoomed by the address. */
import { useCallback, useMemo, useState } from "react";
import { plural } from "../format";
import { lostWorkers } from "../history";
import { listed, listOf } from "../lists";
import { Card } from "../parts/Card";
import { ErrorNotice } from "../parts/Notice";
import { Popup } from "../parts/Popup";
import { ToggleChips } from "../parts/ToggleChips";
import { AxisPick } from "../plot/Controls";
import { batchesOf, KINDS, pointsOf, sizesOf, type Clock } from "../plot/curves";
import { xRange, type Line, type Range } from "../plot/lines";
import type { ChartView } from "../plot/view";
import { hasEnded, type Job, type JobEvent } from "../wire";
import { placedOf } from "./happened";
import { metricLook, USUAL } from "./looks";
import { MarksLane } from "./MarksLane";
import { MetricChart } from "./MetricChart";
import { useMetricNames, useStretch, type useCurves } from "./reading";
import { Tip, type Shown } from "./Tip";
import { MOST_CHARTS, useRunChange } from "./view";

interface Props {
  job: Job;
  view: ChartView;
  events: readonly JobEvent[];
  read: ReturnType<typeof useCurves>;
}

export function Charts({ job, view, events, read }: Props) {
  const live = !hasEnded(job.state);
  const change = useRunChange(job.id);
  const zoom = useZoom(view);
  const clock = useMemo((): Clock => clockOf(job.started_at, job.spec), [job.started_at, job.spec]);
  const sizes = useMemo(() => sizesOf(clock.batches), [clock]);
  const stretch = useStretch(job.id, view.names, view.axis, zoom, sizes, live);
  const drawn = (zoom && stretch.data) ?? read.data?.curves;
  const key = listOf(view.names);
  const shown = useMemo(
    () =>
      listed(key).map((name): Shown => {
        const look = metricLook(name);
        const curve = drawn?.get(name);
        const points = curve && pointsOf(curve, view.axis, clock);
        const line = points && { id: name, label: look.label, look: look.look, holds: look.holds === true, ...points };
        return { name, look, line: line ?? undefined };
      }),
    [key, drawn, view.axis, clock],
  );
  const placed = useMemo(() => placedOf(events, view.axis, clock, job.attempt), [events, view.axis, clock, job.attempt]);
  const x = useMemo(() => zoom ?? extent(shown, placed), [zoom, shown, placed]);
  const [at, setAt] = useState<number | null>(null);
  const kind = KINDS[view.axis];
  const tip = useCallback(
    (to: number, perPixel: number) => <Tip x={to} perPixel={perPixel} kind={kind} shown={shown} placed={placed} />,
    [kind, shown, placed],
  );
  const error = read.failureReason ?? stretch.failureReason;
  return (
    <Card
      title="Training"
      className="charts-card"
      aside={
        live && (
          <span className="live">
            <i aria-hidden="true" />
            live
          </span>
        )
      }
    >
      {error && <ErrorNotice error={error} stale={read.data !== undefined} />}
      <Bar job={job} view={view} live={live} onChange={change} />
      {x && <MarksLane placed={placed} x={x} />}
      {shown.map((chart) => (
        <MetricChart
          key={chart.name}
          of={job.name}
          chart={chart}
          view={view}
          kind={kind}
          x={x}
          marks={placed}
          at={at}
          live={live}
          onAt={setAt}
          tip={tip}
          onChange={change}
        />
      ))}
      <Legend lost={lostWorkers(events).length} />
    </Card>
  );
}

function Bar({ job, view, live, onChange }: { job: Job; view: ChartView; live: boolean; onChange: (part: Partial<ChartView>) => void }) {
  const found = useMetricNames(job.id, live).data ?? [];
  const { names } = view;
  const flip = (name: string): void => {
    const rest = names.filter((one) => one !== name);
    if (rest.length === names.length) onChange({ names: [...names, name] });
    else if (rest.length > 0) onChange({ names: rest });
  };
  return (
    <div className="charts-bar">
      <AxisPick axis={view.axis} onPick={(axis) => onChange({ axis, zoom: null })} />
      <Popup title="Charts">
        <ToggleChips
          label="Charts"
          names={[...new Set([...USUAL, ...names, ...found])]}
          on={names}
          onFlip={flip}
          full={names.length >= MOST_CHARTS}
          words={(name) => metricLook(name).label}
        />
      </Popup>
      {view.zoom && (
        <button type="button" className="push" onClick={() => onChange({ zoom: null })}>
          Show all
        </button>
      )}
    </div>
  );
}

function Legend({ lost }: { lost: number }) {
  return (
    <ul className="legend charts-legend">
      <li>
        <i className="key key-lost" aria-hidden="true" />
        {lost > 0 ? `${plural(lost, "worker")} lost` : "worker lost"}
      </li>
      <li>
        <i className="key key-recovery" aria-hidden="true" />
        recovery
      </li>
      <li>
        <i className="key key-generation" aria-hidden="true" />
        new generation
      </li>
      <li>
        <i className="key key-checkpoint" aria-hidden="true" />
        checkpoint
      </li>
    </ul>
  );
}

export function clockOf(startedAt: string | null, spec: Job["spec"]): Clock {
  return { startedAt: startedAt === null ? null : Date.parse(startedAt) / 1000, batches: batchesOf({ spec }) };
}

/** One axis for all charts, which holds every mark; null while there is nothing. */
function extent(shown: readonly Shown[], placed: readonly { x: number; until: number }[]): Range | null {
  const lines = shown.flatMap(({ line }): Line[] => (line ? [line] : []));
  const range = xRange(lines);
  if (range === null) return null;
  return placed.reduce<Range>(([low, high], one) => [Math.min(low, one.x), Math.max(high, one.until)], range);
}

/** The stretch, the same object while the address says the same. */
function useZoom({ zoom }: ChartView): Range | null {
  const [from, to] = [zoom?.[0], zoom?.[1]];
  return useMemo(() => (from === undefined || to === undefined ? null : [from, to]), [from, to]);
}
