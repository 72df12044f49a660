/** All jobs, newest first: what each does, how far it is, why it waits or failed. */
import { useCallback, useEffect, useState } from "react";
import { jobs as readJobs } from "../api";
import { age, full, gist, sentence } from "../format";
import { Link } from "../parts/Frame";
import { Empty, ErrorNotice, Skeleton } from "../parts/Notice";
import { ProgressBar, StateBadge } from "../parts/State";
import { usePoll, type Pace } from "../poll";
import { navigate } from "../router";
import { hasEnded, STATES, workerBounds, type Job } from "../wire";

const PACE: Pace<unknown> = () => 1500;
const LIMIT = 25;

export function JobsView({ query }: { query: string }) {
  const state = new URLSearchParams(query).get("state") ?? "";
  const known = STATES.some((one) => one === state) ? state : "";
  useEffect(() => {
    document.title = "Jobs · Ringleader";
  }, []);
  return (
    <>
      <div className="view-head">
        <h1>Jobs</h1>
        <Link to="/submit" className="button primary">
          Submit a job
        </Link>
      </div>
      <StateFilter state={known} />
      <Pages key={known} state={known} />
    </>
  );
}

function StateFilter({ state }: { state: string }) {
  return (
    <div className="chips filter" role="group" aria-label="Filter by state">
      {["", ...STATES].map((one) => (
        <button
          key={one}
          type="button"
          className="chip"
          aria-pressed={one === state}
          onClick={() => navigate(one ? `/?state=${one}` : "/", "replace")}
        >
          {one ? <StateBadge state={one} /> : "All"}
        </button>
      ))}
    </div>
  );
}

function Pages({ state }: { state: string }) {
  const [cursors, setCursors] = useState<string[]>([]);
  const cursor = cursors.at(-1) ?? null;
  const read = useCallback(
    (signal: AbortSignal) => readJobs({ state, cursor, limit: LIMIT }, signal),
    [state, cursor],
  );
  const { data, error, at } = usePoll(read, PACE);
  const next = data?.next_cursor;
  return (
    <>
      {error && <ErrorNotice error={error} stale={data !== undefined} />}
      {data === undefined ? (
        !error && <Skeleton lines={6} />
      ) : (
        <JobTable jobs={data.items} now={at} state={state} />
      )}
      {(cursors.length > 0 || next) && (
        <nav className="pager" aria-label="Pages">
          <button
            type="button"
            disabled={cursors.length === 0}
            onClick={() => setCursors(cursors.slice(0, -1))}
          >
            Newer
          </button>
          <span className="muted">Page {cursors.length + 1}</span>
          <button type="button" disabled={!next} onClick={() => next && setCursors([...cursors, next])}>
            Older
          </button>
        </nav>
      )}
    </>
  );
}

function JobTable({ jobs, now, state }: { jobs: readonly Job[]; now: number; state: string }) {
  if (jobs.length === 0) {
    return state ? (
      <Empty title={`No ${state} jobs`}>
        <p>
          <Link to="/">See all jobs</Link>
        </p>
      </Empty>
    ) : (
      <Empty title="No jobs yet">
        <p className="muted">Submit the digits example to watch three workers train, and kill one.</p>
        <p>
          <Link to="/submit" className="button primary">
            Submit a job
          </Link>
        </p>
      </Empty>
    );
  }
  return (
    <table className="jobs" data-testid="jobs">
      <thead>
        <tr>
          <th>State</th>
          <th>Job</th>
          <th>Progress</th>
          <th>Workers</th>
          <th className="num">Age</th>
        </tr>
      </thead>
      <tbody>
        {jobs.map((job) => (
          <Row key={job.id} job={job} now={now} />
        ))}
      </tbody>
    </table>
  );
}

function Row({ job, now }: { job: Job; now: number }) {
  const { min, max } = workerBounds(job.spec);
  const live = !hasEnded(job.state);
  const why = job.reason ?? (live ? job.pending_reason : null);
  return (
    <tr data-job={job.id}>
      <td className="cell-state">
        <StateBadge state={job.state} />
      </td>
      <td className="cell-job">
        <Link to={`/jobs/${job.id}`} className="job-link">
          {job.name}
        </Link>
        <span className="muted"> {job.project}</span>
        {why && (
          <p className={`why ${job.state === "failed" ? "bad" : "muted"}`} title={why.message}>
            {sentence(gist(why.message))}
          </p>
        )}
      </td>
      <td className="cell-progress">
        <ProgressBar progress={job.progress} state={job.state} />
      </td>
      <td className="cell-workers">
        <span className="cell-label">Workers </span>
        <b>{live ? job.world_size : "–"}</b>{" "}
        <span className="muted">/ {min === max ? max : `${min}–${max}`}</span>
      </td>
      <td className="num cell-age" title={full(job.created_at)}>
        {age(job.created_at, now)}
      </td>
    </tr>
  );
}
