/** The page of one job: state, charts, workers, events, logs, what one can do. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useMemo } from "react";
import { stringify } from "yaml";
import { artifacts as readArtifacts, job as readJob, jobPath, workers as readWorkers } from "../api";
import { every } from "../cache";
import { useFeed } from "../feed";
import { duration } from "../format";
import { lostWorkers, recoveries } from "../history";
import { ArtifactList } from "../kept/ArtifactList";
import { Checkpoints } from "../kept/Checkpoints";
import { told } from "../kept/kept";
import { LogView } from "../logs/LogView";
import { Card } from "../parts/Card";
import { Copy } from "../parts/Copy";
import { JobAlerts } from "../parts/JobAlerts";
import { JobHeader } from "../parts/JobHeader";
import { Empty, ErrorNotice, LeftOut, Skeleton, whyTitle, WhyNotice } from "../parts/Notice";
import { Recoveries } from "../parts/Recoveries";
import { ResultCard } from "../parts/ResultCard";
import { Surplus } from "../parts/Surplus";
import { Tiles } from "../parts/Tiles";
import { Timeline } from "../parts/Timeline";
import { WorkersTable } from "../parts/WorkersTable";
import { hasEnded, type Artifact, type Job, type JobEvent, type LogLine, type SystemSeries, type Worker } from "../wire";
import { Charts } from "../run/Charts";
import { Lanes } from "../run/Lanes";
import { lanesOf, nodesOf } from "../run/lanes";
import { stepRate } from "../run/looks";
import { useNodeNames } from "../nodes";
import { useCurves, useSystem } from "../run/reading";
import { System } from "../run/System";
import { TimeShares } from "../run/TimeShares";
import { leftOut, parseRun, timeOf, useRunChange } from "../run/view";
import { TraceCard } from "../trace/TraceCard";
import "../styles/kept.css";
import "../styles/run.css";

const LIVE_MS = 1000;
const ENDED_MS = 15_000;
const WORKERS_MS = 1500;
const LOG_CAP = 5000;

/** Metrics that the page reads whichever charts are shown. */
const OWN = ["loss", "samples_per_s", "comm_exposed_fraction", "exchange_fraction", "idle_fraction", "loading_fraction"];

const NO_WORKERS: readonly Worker[] = [];
const NO_FILES: readonly Artifact[] = [];
const NO_SERIES: readonly SystemSeries[] = [];

export function JobView({ id, query }: { id: string; query: string }) {
  const {
    data: job,
    failureReason: error,
    dataUpdatedAt: at,
    refetch,
  } = useQuery({
    queryKey: ["jobs", id],
    queryFn: ({ signal }) => readJob(id, signal),
    refetchInterval: (query) => every(query.state.data && hasEnded(query.state.data.state) ? ENDED_MS : LIVE_MS)(query),
  });
  useEffect(() => {
    if (job) document.title = `${job.name} · ${job.state} · Ringleader`;
  }, [job]);
  if (job === undefined && error?.status === 404) {
    return (
      <Empty title="This job does not exist">
        <p className="muted">
          It may have been deleted. <Link to="/jobs">See all jobs</Link>
        </p>
      </Empty>
    );
  }
  if (job === undefined) return error ? <ErrorNotice error={error} stale={false} /> : <Skeleton lines={9} />;
  return (
    <>
      {error && <ErrorNotice error={error} stale />}
      <Known job={job} query={query} now={at} onChange={() => void refetch()} />
    </>
  );
}

function Known({ job, query, now, onChange }: { job: Job; query: string; now: number; onChange: () => void }) {
  const live = !hasEnded(job.state);
  const view = useMemo(() => parseRun(query), [query]);
  const left = useMemo(() => leftOut(query), [query]);
  const time = useMemo(() => timeOf(view, job.started_at), [view, job.started_at]);
  const curves = useCurves(job.id, [...new Set([...OWN, ...view.names])], live);
  const events = useFeed<JobEvent>(`${jobPath(job.id)}/events`, live);
  const logs = useFeed<LogLine>(`${jobPath(job.id)}/logs`, live, LOG_CAP);
  const workers = useQuery({
    queryKey: ["jobs", job.id, "workers", live],
    queryFn: ({ signal }) => readWorkers(job.id, signal),
    placeholderData: keepPreviousData,
    refetchInterval: live && every(WORKERS_MS),
  });
  const system = useSystem(job.id, time, live);
  // Read again with each file that the job tells of, and at its end.
  const files = useMemo(() => `${live}${told(events.items, "artifact.saved")}`, [events.items, live]);
  const artifacts = useQuery({
    queryKey: ["jobs", job.id, "artifacts", files],
    queryFn: ({ signal }) => readArtifacts(job.id, signal),
    placeholderData: keepPreviousData,
  });
  const pace = curves.data?.curves.get("loss");
  const until = live ? Math.round(now / 1000) : 0;
  const lanes = useMemo(
    () => lanesOf(events.items, workers.data ?? NO_WORKERS, pace, until),
    [events.items, workers.data, pace, until],
  );
  // The same object while they are the same: charts are drawn anew by it.
  const named = nodesOf(lanes).join(" ");
  const nodes = useMemo(() => named.split(" ").filter(Boolean), [named]);
  const names = useNodeNames(events.items, workers.data ?? NO_WORKERS);
  const change = useRunChange(job.id);
  const recovered = useMemo(() => recoveries(events.items), [events.items]);
  const lost = useMemo(() => lostWorkers(events.items).length, [events.items]);
  const measured = (curves.data?.curves.size ?? 0) > 0;
  const rate = stepRate(pace);
  return (
    <div className="job">
      <JobHeader job={job} now={now} view={view} rate={live ? rate : undefined} onChange={onChange} />
      <LeftOut notes={left} />
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
      <JobAlerts job={job.id} />
      <Tiles job={job} curves={curves.data?.curves} recovered={recovered} lost={lost} />
      {job.result && <ResultCard result={job.result} />}
      <div className="columns">
        <div className="column-wide">
          <Charts job={job} view={view} events={events.items} read={curves} />
          <Lanes lanes={lanes} nodes={nodes} names={names} curve={pace} series={system.data?.series ?? NO_SERIES} zoom={time} />
          <TimeShares
            pace={pace}
            waits={{
              loading: curves.data?.curves.get("loading_fraction"),
              exposed: curves.data?.curves.get("comm_exposed_fraction"),
              exchange: curves.data?.curves.get("exchange_fraction"),
              idle: curves.data?.curves.get("idle_fraction"),
            }}
            recoveries={recovered}
          />
          <System job={job} read={system} nodes={nodes} names={names} zoom={time} onChange={change} />
          <Card title="Workers">
            {workers.failureReason && <ErrorNotice error={workers.failureReason} stale={workers.data !== undefined} />}
            {workers.data ? (
              <WorkersTable workers={workers.data} names={names} ended={!live} />
            ) : (
              !workers.failureReason && <Skeleton lines={3} />
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
      <Checkpoints job={job} events={events.items} artifacts={artifacts.data ?? NO_FILES} now={now} />
      <TraceCard job={job.id} artifacts={artifacts.data ?? NO_FILES} />
      {artifacts.data && (artifacts.data.length > 0 || measured) && (
        <Card title="Artifacts">
          <ArtifactList job={job.id} artifacts={artifacts.data} measured={measured} />
        </Card>
      )}
      <Card title="Logs">
        <LogView job={job.id} feed={logs} events={events.items} cap={LOG_CAP} />
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
