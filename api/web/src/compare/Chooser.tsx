/** Choosing runs to compare, among the newest jobs. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { jobs as readJobs } from "../api";
import { age } from "../format";
import { ErrorNotice, Skeleton } from "../parts/Notice";
import { StateBadge } from "../parts/State";
import { useCompareJobs } from "./change";
import { MAX_JOBS } from "./state";

const NEWEST = 200;

export function Chooser({ chosen }: { chosen: readonly string[] }) {
  const [picked, setPicked] = useState<readonly string[]>(chosen);
  const [text, setText] = useState("");
  const compareJobs = useCompareJobs();
  const wanted = text.trim();
  const { data, failureReason: error, dataUpdatedAt: at } = useQuery({
    queryKey: ["jobs", "newest", wanted],
    queryFn: ({ signal }) => readJobs({ limit: NEWEST, search: wanted }, signal),
    placeholderData: keepPreviousData,
  });
  const flip = (id: string): void => setPicked(picked.includes(id) ? picked.filter((one) => one !== id) : [...picked, id]);
  const surplus = picked.length > MAX_JOBS;
  return (
    <div className="chooser" data-testid="chooser">
      <div className="chooser-head">
        <label>
          Search
          <input value={text} onChange={(event) => setText(event.target.value)} placeholder="all jobs" />
        </label>
        <button type="button" disabled={!data?.items.length} onClick={() => setPicked((data?.items ?? []).slice(0, MAX_JOBS).map((job) => job.id))}>
          All of these
        </button>
        <button type="button" onClick={() => setPicked([])}>
          None
        </button>
        <button type="button" className="primary" disabled={picked.length === 0 || surplus} onClick={() => compareJobs(picked)}>
          Compare {picked.length}
        </button>
        {surplus && <p className="bad">At most {MAX_JOBS} runs are compared at once.</p>}
      </div>
      {error && <ErrorNotice error={error} stale={false} />}
      {data === undefined && !error && <Skeleton lines={4} />}
      {data?.items.length === 0 && <p className="muted pad">No job with this text.</p>}
      <ul className="chooser-list">
        {data?.items.map((job) => (
          <li key={job.id}>
            <label className="check">
              <input type="checkbox" checked={picked.includes(job.id)} onChange={() => flip(job.id)} />
              <span className="clip">{job.name}</span>
              <span className="muted">{job.project}</span>
              <StateBadge state={job.state} />
              <span className="muted push">{age(job.created_at, at)}</span>
            </label>
          </li>
        ))}
      </ul>
    </div>
  );
}
