/** The page of one job: state, charts, workers, events, logs, what one can do. */
import { useCallback, useEffect, useMemo, useState } from "react";
import { stringify } from "yaml";
import { job as readJob, jobPath, workers as readWorkers } from "../api";
import { useFeed } from "../feed";
import { duration } from "../format";
import { lostWorkers, recoveries } from "../history";
import { Card } from "../parts/Card";
import { Copy } from "../parts/Copy";
import { JobHeader } from "../parts/JobHeader";
import { LogView } from "../parts/LogView";
import { Empty, ErrorNotice, Skeleton, whyTitle, WhyNotice } from "../parts/Notice";
import { Recoveries } from "../parts/Recoveries";
import { ResultCard } from "../parts/ResultCard";
import { Surplus } from "../parts/Surplus";
import { Tiles } from "../parts/Tiles";
import { Timeline } from "../parts/Timeline";
import { WorkersTable } from "../parts/WorkersTable";
import { usePoll, type Pace } from "../poll";
import { stepRate } from "../series";
import { hasEnded, type Job, type JobEvent, type LogLine } from "../wire";
import { JobCharts, useMetrics } from "./JobCharts";
import { Link } from "../parts/Frame";

const JOB_PACE: Pace<Job> = (data) => (data && hasEnded(data.state) ? 15_000 : 1000);
const WORKERS_LIVE: Pace<unknown> = () => 1500;
const ONCE: Pace<unknown> = () => null;
const LOG_CAP = 5000;

export function JobView({ id }: { id: string }) {
  const {
    data: job,
    error,
    at,
    again,
  } = usePoll(
    useCallback((signal: AbortSignal) => readJob(id, signal), [id]),
    JOB_PACE,
  );
  useEffect(() => {
    if (job) document.title = `${job.name} · ${job.state} · Ringleader`;
  }, [job]);
  if (job === undefined && error?.status === 404) {
    return (
      <Empty title="This job does not exist">
        <p className="muted">
          It may have been deleted. <Link to="/">See all jobs</Link>
        </p>
      </Empty>
    );
  }
  if (job === undefined) return error ? <ErrorNotice error={error} stale={false} /> : <Skeleton lines={9} />;
  return (
    <>
      {error && <ErrorNotice error={error} stale />}
      <Known job={job} now={at} onChange={again} />
    </>
  );
}

function Known({ job, now, onChange }: { job: Job; now: number; onChange: () => void }) {
  const live = !hasEnded(job.state);
  const [extra, setExtra] = useState<string[]>([]);
  const metrics = useMetrics(job.id, extra, live);
  const events = useFeed<JobEvent>(`${jobPath(job.id)}/events`, live);
  const logs = useFeed<LogLine>(`${jobPath(job.id)}/logs`, live, LOG_CAP);
  const workers = usePoll(
    useCallback((signal: AbortSignal) => readWorkers(job.id, signal), [job.id]),
    live ? WORKERS_LIVE : ONCE,
  );
  const recovered = useMemo(() => recoveries(events.items), [events.items]);
  const lost = useMemo(() => lostWorkers(events.items).length, [events.items]);
  const rate = stepRate(metrics.data?.points.loss ?? []);
  return (
    <div className="job">
      <JobHeader job={job} now={now} rate={live ? rate : undefined} onChange={onChange} />
      {job.pending_reason && live && (
        <WhyNotice
          tone={job.state === "queued" ? "info" : "warn"}
          title={job.state === "queued" ? "Why it is waiting" : "What is wrong"}
          why={job.pending_reason}
        />
      )}
      {job.reason && (
        <WhyNotice
          tone={job.state === "failed" ? "bad" : "warn"}
          title={whyTitle(job.state)}
          why={job.reason}
        />
      )}
      <Tiles job={job} points={metrics.data?.points ?? {}} recovered={recovered} lost={lost} />
      {job.result && <ResultCard result={job.result} />}
      <div className="columns">
        <div className="column-wide">
          <JobCharts job={job} events={events.items} metrics={metrics} extra={extra} onExtra={setExtra} />
          <Card title="Workers">
            {workers.error && <ErrorNotice error={workers.error} stale={workers.data !== undefined} />}
            {workers.data ? (
              <WorkersTable workers={workers.data} ended={!live} />
            ) : (
              !workers.error && <Skeleton lines={3} />
            )}
            {live && <Surplus told={job.surplus} />}
          </Card>
        </div>
        <div className="column-narrow">
          <Card
            title="Recoveries"
            aside={
              recovered.length > 0 && (
                <span className="muted">median {duration(median(recovered.map((one) => one.totalS)))}</span>
              )
            }
          >
            <Recoveries recoveries={recovered} lost={lost} attempts={job.totals.attempts} />
          </Card>
          <Card
            title="Events"
            className="events-card"
            aside={
              live && (
                <span className="live">
                  <i aria-hidden="true" />
                  {events.how === "stream" ? "live" : "polling"}
                </span>
              )
            }
          >
            <Timeline feed={events} />
          </Card>
        </div>
      </div>
      <Card title="Logs">
        <LogView feed={logs} />
      </Card>
      <Spec spec={job.spec} />
    </div>
  );
}

function Spec({ spec }: { spec: Record<string, unknown> }) {
  const text = useMemo(() => stringify(spec), [spec]);
  return (
    <details className="card spec">
      <summary>
        <h2>Job file as accepted</h2>
      </summary>
      <Copy value={text} shown="YAML" label="the job file" />
      <pre>{text}</pre>
    </details>
  );
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1
    ? (sorted[middle] ?? NaN)
    : ((sorted[middle - 1] ?? NaN) + (sorted[middle] ?? NaN)) / 2;
}
