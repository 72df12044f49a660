/** The live charts of one job: reads its metrics and draws them over its events. */
import { useCallback, useMemo, useState } from "react";
import { metric, metricNames } from "../api";
import { Charts } from "../chart/Charts";
import { plural } from "../format";
import { boundaries, lostWorkers, recoveries } from "../history";
import { Card } from "../parts/Card";
import { ErrorNotice } from "../parts/Notice";
import { usePoll, type Pace } from "../poll";
import { ALWAYS, seriesOf } from "../series";
import { hasEnded, type Job, type JobEvent, type MetricPoint } from "../wire";

const MAX_POINTS = 1000;
const SMOOTHING = 0.9;
const LIVE: Pace<unknown> = () => 1500;
const ENDED: Pace<unknown> = () => 20_000;

export interface Metrics {
  names: string[];
  points: Record<string, MetricPoint[]>;
}

export function useMetrics(id: string, extra: readonly string[], live: boolean) {
  const wanted = [...ALWAYS, ...extra].join("\n");
  const read = useCallback(
    async (signal: AbortSignal): Promise<Metrics> => {
      const names = await metricNames(id, signal);
      const chosen = wanted.split("\n").filter((name) => names.includes(name));
      const points = await Promise.all(chosen.map((name) => metric(id, name, MAX_POINTS, signal)));
      return { names, points: Object.fromEntries(chosen.map((name, at) => [name, points[at] ?? []])) };
    },
    [id, wanted],
  );
  return usePoll(read, live ? LIVE : ENDED);
}

interface Props {
  job: Job;
  events: readonly JobEvent[];
  metrics: ReturnType<typeof useMetrics>;
  extra: readonly string[];
  onExtra: (extra: string[]) => void;
}

export function JobCharts({ job, events, metrics, extra, onExtra }: Props) {
  const [log, setLog] = useState(false);
  const [smoothed, setSmoothed] = useState(false);
  const { data, error } = metrics;
  const options = { log, smoothing: smoothed ? SMOOTHING : 0 };
  const shown = [...ALWAYS, ...extra];
  const series = shown.map((name) => seriesOf(name, data?.points[name] ?? [], options));
  const loss = data?.points.loss;
  const happened = useMemo(
    () => ({
      lost: lostWorkers(events),
      recoveries: recoveries(events),
      generations: boundaries(events, loss ?? []),
    }),
    [events, loss],
  );
  const others = (data?.names ?? []).filter((name) => !(ALWAYS as readonly string[]).includes(name));
  const flip = (name: string): void =>
    onExtra(extra.includes(name) ? extra.filter((one) => one !== name) : [...extra, name]);
  const summary = `Loss, throughput and world size by step for ${job.name}; ${plural(happened.lost.length, "worker")} lost. Arrow keys move the crosshair.`;
  const aside = (
    <>
      <label className="check">
        <input type="checkbox" checked={smoothed} onChange={(event) => setSmoothed(event.target.checked)} />
        Smooth
      </label>
      <label className="check">
        <input type="checkbox" checked={log} onChange={(event) => setLog(event.target.checked)} />
        Log scale for loss
      </label>
      {!hasEnded(job.state) && (
        <span className="live">
          <i aria-hidden="true" />
          live
        </span>
      )}
    </>
  );
  return (
    <Card title="Training" aside={aside} className="charts-card">
      {error && <ErrorNotice error={error} stale={data !== undefined} />}
      <Charts series={series} attempt={job.attempt} happened={happened} summary={summary} />
      <div className="charts-foot">
        <ul className="legend">
          <li>
            <i className="key key-lost" aria-hidden="true" />
            worker lost
          </li>
          <li>
            <i className="key key-recovery" aria-hidden="true" />
            recovery
          </li>
          <li>
            <i className="key key-generation" aria-hidden="true" />
            new generation
          </li>
        </ul>
        {others.length > 0 && (
          <div className="chips" role="group" aria-label="More metrics">
            {others.map((name) => (
              <button
                key={name}
                type="button"
                className="chip"
                aria-pressed={extra.includes(name)}
                onClick={() => flip(name)}
              >
                {name.replaceAll("_", " ")}
              </button>
            ))}
          </div>
        )}
      </div>
    </Card>
  );
}
