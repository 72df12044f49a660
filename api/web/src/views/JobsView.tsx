/** All jobs: searched, filtered, sorted, with the columns one chooses; what is shown stands in the address. */
import { Link, useNavigate } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { parseQuery } from "../address";
import { plural } from "../format";
import { columnsAsked, listQuery, narrowings, NEWEST_FIRST, notUnderstood, type Asked } from "../jobs/asked";
import { curvesOf } from "../jobs/columns";
import { Groups } from "../jobs/Groups";
import { JobsTable } from "../jobs/JobsTable";
import { useCurves, useJobs } from "../jobs/reading";
import { Selection } from "../jobs/Selection";
import { Toolbar } from "../jobs/Toolbar";
import { CopyLink } from "../parts/CopyLink";
import { Empty, ErrorNotice, LeftOut, Skeleton } from "../parts/Notice";

/** What the link that was opened asks for and no list can show. The router has taken it out of the address already. */
let opened = typeof location === "undefined" ? [] : notUnderstood(/^\/(jobs)?$/.test(location.pathname) ? parseQuery(location.search) : {});

export function JobsView({ asked }: { asked: Asked }) {
  const [left, setLeft] = useState(opened);
  useEffect(() => {
    document.title = "Jobs · Ringleader";
    return () => {
      opened = [];
    };
  }, []);
  const navigate = useNavigate();
  const ask = (change: Partial<Asked>, typed = false): void => {
    setLeft([]);
    void navigate({ to: "/jobs", search: { ...asked, ...change }, replace: typed, resetScroll: false });
  };
  return (
    <>
      <div className="view-head">
        <h1>Jobs</h1>
        <div className="actions">
          <CopyLink />
          <Link to="/submit" search={{ from: undefined }} className="button primary">
            Submit a job
          </Link>
        </div>
      </div>
      <LeftOut notes={left.length > 0 ? [`Left out, because no list of jobs can be asked for it: ${left.join(", ")}.`] : []} />
      <Toolbar asked={asked} ask={ask} />
      {asked.group === undefined ? (
        <List asked={asked} onSort={(sort) => ask({ sort })} />
      ) : (
        <Groups {...{ asked, ask }} list={(within) => <List asked={within} onSort={(sort) => ask({ sort })} />} />
      )}
    </>
  );
}

function List({ asked, onSort }: { asked: Asked; onSort: (sort: string | undefined) => void }) {
  const [selected, setSelected] = useState<Record<string, true>>({});
  const { jobs, data, failureReason, dataUpdatedAt, isPlaceholderData, hasNextPage, isFetchingNextPage, fetchNextPage } =
    useJobs(asked);
  const columns = useMemo(() => columnsAsked({ columns: asked.columns }), [asked.columns]);
  const curve = useCurves(jobs, useMemo(() => curvesOf(columns), [columns]));
  const more = useMemo(
    () => (hasNextPage && !isFetchingNextPage ? () => void fetchNextPage() : null),
    [hasNextPage, isFetchingNextPage, fetchNextPage],
  );
  // What is selected and not in the list any more is not acted on.
  const chosen = useMemo(() => jobs.filter((job) => selected[job.id]), [jobs, selected]);
  return (
    <>
      {failureReason && <ErrorNotice error={failureReason} stale={data !== undefined} />}
      <Selection jobs={chosen} onClear={() => setSelected({})} />
      {data === undefined && !failureReason && <Skeleton lines={6} />}
      {data !== undefined && jobs.length === 0 && <NoJobs asked={asked} />}
      {jobs.length > 0 && (
        <>
          <JobsTable
            {...{ jobs, columns, onSort, selected, more }}
            sort={asked.sort ?? NEWEST_FIRST}
            onSelect={setSelected}
            around={{ now: dataUpdatedAt, curve }}
            stale={isPlaceholderData}
          />
          <p className="jobs-foot muted" role="status" data-testid="jobs-loaded" data-count={jobs.length}>
            {isFetchingNextPage ? "Loading more jobs…" : `${plural(jobs.length, "job")}${hasNextPage ? ", and more below" : ""}`}
          </p>
        </>
      )}
    </>
  );
}

function NoJobs({ asked }: { asked: Asked }) {
  const { search, state } = listQuery(asked);
  const narrowed = search !== undefined || state !== undefined || narrowings(asked).length > 0;
  return narrowed ? (
    <Empty title="No jobs match">
      <p>
        <Link to="/jobs">See all jobs</Link>
      </p>
    </Empty>
  ) : (
    <Empty title="No jobs yet">
      <p className="muted">Submit the digits example to watch three workers train, and kill one.</p>
      <p>
        <Link to="/submit" search={{ from: undefined }} className="button primary">
          Submit a job
        </Link>
      </p>
    </Empty>
  );
}
