/** What each column of the job list shows of a job. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { age, full, gist, number, ranFor, sentence } from "../format";
import { ProgressBar, StateBadge } from "../parts/State";
import { WithJobs } from "../parts/WithJobs";
import { hasEnded, workerBounds, type Curve, type Job } from "../wire";
import { drawnBy } from "./columns";
import { Sparkline } from "./Sparkline";

export interface Around {
  now: number;
  /** The curve of a metric of a job, as far as it has been read. */
  curve: (job: string, name: string) => Curve | undefined;
}

export function Cell({ id, job, around }: { id: string; job: Job; around: Around }): ReactNode {
  const drawn = drawnBy(id);
  if (drawn?.kind === "metric") return <Value value={job.metrics?.[drawn.name]?.[drawn.statistic]} />;
  if (drawn?.kind === "curve") return <Sparkline name={drawn.name} curve={around.curve(job.id, drawn.name)} />;
  if (drawn?.kind === "param") return <Param value={paramOf(job, drawn.name)} />;
  if (drawn?.kind === "label") return <Param value={job.labels[drawn.name]} />;
  switch (id) {
    case "state":
      return <StateBadge state={job.state} />;
    case "name":
      return <Name job={job} />;
    case "progress":
      return <ProgressBar progress={job.progress} state={job.state} />;
    case "workers":
      return <Workers job={job} />;
    case "labels":
      return Object.entries(job.labels).map(([key, value]) => (
        <span key={key} className="tag">
          {key}: {value}
        </span>
      ));
    case "duration":
      return ranFor(job.started_at, job.finished_at, around.now);
    case "submitted_at":
      return <When at={job.created_at} now={around.now} />;
    case "finished_at":
      return job.finished_at ? <When at={job.finished_at} now={around.now} /> : <Nothing />;
    case "id":
      return <span className="mono">{job.id}</span>;
    case "priority":
      return <Value value={typeof job.spec.priority === "number" ? job.spec.priority : 0} />;
    case "attempt":
      return <Value value={job.attempt} />;
    default:
      return id === "owner" ? job.owner : job.project;
  }
}

function Name({ job }: { job: Job }) {
  const why = job.reason ?? (hasEnded(job.state) ? null : job.pending_reason);
  return (
    <>
      <Link to="/jobs/$id" params={{ id: job.id }} className="job-link">
        {job.name}
      </Link>
      <span className="muted"> {job.project}</span>
      {why && (
        <p className={`why ${job.state === "failed" ? "bad" : "muted"}`} title={why.message}>
          <WithJobs text={sentence(gist(why.message))} />
        </p>
      )}
    </>
  );
}

function Workers({ job }: { job: Job }) {
  const { min, max } = workerBounds(job.spec);
  return (
    <>
      <b>{hasEnded(job.state) ? "–" : job.world_size}</b>{" "}
      <span className="muted">/ {min === max ? max : `${min}–${max}`}</span>
    </>
  );
}

function When({ at, now }: { at: string; now: number }) {
  return (
    <time className="muted" dateTime={at} title={full(at)}>
      {age(at, now)}
    </time>
  );
}

function Value({ value }: { value: number | undefined }) {
  return value === undefined ? <Nothing /> : <span title={String(value)}>{number(value)}</span>;
}

function Param({ value }: { value: unknown }) {
  if (value === undefined) return <Nothing />;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return (
    <span className="mono" title={text}>
      {text}
    </span>
  );
}

function Nothing() {
  return <span className="muted">–</span>;
}

export function paramOf(job: Job, key: string): unknown {
  const { params } = job.spec;
  return typeof params === "object" && params !== null ? (params as Record<string, unknown>)[key] : undefined;
}
