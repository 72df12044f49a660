/** The head of a job's page: what it is, how it is, how far it is. */
import { Link } from "@tanstack/react-router";
import { reportUrl } from "../api";
import { age, duration, full, ranFor } from "../format";
import { batchesOf, sizesOf } from "../plot/curves";
import { drawnParts, queryOf, type ChartView } from "../plot/view";
import { hasEnded, priorityOf, type Job } from "../wire";
import { Actions } from "./Actions";
import { Chosen } from "./Chosen";
import { Copy } from "./Copy";
import { CopyLink } from "./CopyLink";
import { ReportLink } from "./ReportLink";
import { ProgressBar, StateBadge } from "./State";

interface Props {
  job: Job;
  now: number;
  /** Steps per second, while it trains. */
  rate: number | undefined;
  view: ChartView;
  onChange: () => void;
}

export function JobHeader({ job, now, rate, view, onChange }: Props) {
  const tracking = safeLink(job.tracking.url);
  return (
    <header className="job-head">
      <nav className="crumbs" aria-label="Breadcrumb">
        <Link to="/jobs" activeOptions={{ exact: true }}>
          Jobs
        </Link>
        <span aria-hidden="true">/</span>
        <span>{job.project}</span>
      </nav>
      <div className="job-title">
        <h1>{job.name}</h1>
        <span aria-live="polite" data-testid="job-state">
          <StateBadge state={job.state} />
        </span>
        <div className="job-actions">
          {tracking && (
            <a className="button" href={tracking} target="_blank" rel="noreferrer">
              MLflow run<span aria-hidden="true"> ↗</span>
            </a>
          )}
          <CopyLink />
          <ReportLink href={reportUrl(job.id, queryOf(drawnParts(view, sizesOf(batchesOf(job)))))} />
          <Actions job={job} onChange={onChange} />
        </div>
      </div>
      <div className="job-meta">
        <Copy value={job.id} label="the job ID" />
        <span>
          attempt <b data-testid="attempt">{job.attempt}</b>
        </span>
        <span>
          generation <b data-testid="generation-now">{job.generation}</b>
        </span>
        {priorityOf(job.spec) !== 0 && (
          <span>
            priority <b>{priorityOf(job.spec)}</b>
          </span>
        )}
        {job.owner && <span>by {job.owner}</span>}
        <span title={full(job.created_at)}>submitted {age(job.created_at, now)}</span>
        {Object.entries(job.labels).map(([key, value]) => (
          <span key={key} className="tag">
            {key}: {value}
          </span>
        ))}
      </div>
      <Chosen spec={job.spec} />
      <div className="job-progress">
        <ProgressBar progress={job.progress} state={job.state} />
        <span className="muted">
          epoch {job.progress.epoch} · run time {ranFor(job.started_at, job.finished_at, now)}
          {remaining(job, rate)}
        </span>
      </div>
    </header>
  );
}

function remaining({ progress, state }: Job, rate: number | undefined): string {
  if (rate === undefined || progress.total_steps === null || hasEnded(state)) return "";
  const left = Math.max(0, progress.total_steps - progress.step) / rate;
  return ` · about ${duration(left < 10 ? Math.ceil(left) : left)} left`;
}

/** Links that came as data: http(s) or a path of this origin, nothing that runs. */
export function safeLink(url: string): string | null {
  return /^https?:\/\//.test(url) || /^\/(?!\/)/.test(url) ? url : null;
}
