/** One sweep: how far it is, its best score so far, its rungs, its trials and what they differ in. */
import { useMutation } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { changeSweep } from "../api";
import { Parameters, type Axes } from "../compare/Parameters";
import { MAX_JOBS } from "../compare/state";
import { number } from "../format";
import { listOf } from "../lists";
import { Card } from "../parts/Card";
import { CopyLink } from "../parts/CopyLink";
import { Dialog } from "../parts/Dialog";
import { Empty, ErrorNotice, Notice, Skeleton, WhyNotice } from "../parts/Notice";
import { StateBadge } from "../parts/State";
import { KINDS } from "../plot/curves";
import { LinePlot } from "../plot/LinePlot";
import type { Range } from "../plot/lines";
import { axesOf, bestSoFar, ordered, runsOfTrials } from "../sweeps/leaderboard";
import { Leaderboard, Rungs } from "../sweeps/Leaderboard";
import type { Order } from "../sweeps/order";
import { sweepEnded, useSweep, useTrials } from "../sweeps/reading";
import type { Sweep, Trial } from "../wire";
import "../styles/compare.css";

export function SweepView({ id, order }: { id: string; order: Order }) {
  const { data: sweep, failureReason: error, dataUpdatedAt: now, refetch } = useSweep(id);
  useEffect(() => {
    document.title = `${sweep?.name ?? "Sweep"} · Ringleader`;
  }, [sweep?.name]);
  if (sweep === undefined && error?.status === 404) {
    return (
      <Empty title="This sweep does not exist">
        <p>
          <Link to="/sweeps">See all sweeps</Link>
        </p>
      </Empty>
    );
  }
  if (sweep === undefined) return error ? <ErrorNotice error={error} stale={false} /> : <Skeleton lines={9} />;
  return (
    <>
      {error && <ErrorNotice error={error} stale />}
      <Known sweep={sweep} now={now} order={order} onChange={() => void refetch()} />
    </>
  );
}

interface Props {
  sweep: Sweep;
  now: number;
  order: Order;
  onChange: () => void;
}

function Known({ sweep, now, order, onChange }: Props) {
  const { data: trials, failureReason: error } = useTrials(sweep.id, sweep.state);
  return (
    <>
      <div className="view-head">
        <div className="job-title">
          <h1>{sweep.name}</h1>
          <StateBadge state={sweep.state} />
        </div>
        <div className="actions">
          <CopyLink />
          <Actions sweep={sweep} onChange={onChange} />
        </div>
      </div>
      <p className="muted sweep-facts" data-testid="sweep-facts">
        {sweep.ended} of {sweep.trials} trials ended
        {sweep.best !== null && `, best: trial ${sweep.best} with ${sweep.spec.metric.name} ${number(sweep.best_score)}`}
      </p>
      {sweep.reason && <WhyNotice tone={sweep.state === "failed" ? "bad" : "info"} title="Why" why={sweep.reason} />}
      <Best sweep={sweep} now={now} />
      {error && <ErrorNotice error={error} stale={trials !== undefined} />}
      {trials === undefined ? !error && <Skeleton lines={6} /> : <Trials sweep={sweep} trials={trials} order={order} />}
    </>
  );
}

function Trials({ sweep, trials, order }: { sweep: Sweep; trials: readonly Trial[]; order: Order }) {
  const drawn = useMemo(() => trials.filter((trial) => trial.score !== null), [trials]);
  const runs = useMemo(() => runsOfTrials(sweep, drawn), [sweep, drawn]);
  const axes = useMemo(() => axesOf(sweep, drawn), [sweep, drawn]);
  const [scatter, setScatter] = useState<Axes>(["", ""]);
  const jobs = ordered(trials, sweep, undefined).flatMap(({ job }) => job ?? []);
  return (
    <>
      {sweep.rungs.length > 0 && <Rungs sweep={sweep} trials={trials} />}
      <Leaderboard sweep={sweep} trials={trials} order={order} aside={jobs.length > 0 && <Jobs jobs={jobs} sweep={sweep} />} />
      {axes.length > 1 && <Parameters runs={runs} dimensions={axes} scatter={scatter} onScatter={setScatter} highlight={null} />}
    </>
  );
}

/** Links to the trials in the list of jobs, and to them side by side: to the best where they are too many. */
function Jobs({ jobs, sweep }: { jobs: readonly string[]; sweep: Sweep }) {
  return (
    <span className="sweep-links">
      <Link to="/jobs" search={{ label: [`sweep_id=${sweep.id}`] }}>
        List the trials
      </Link>
      <Link to="/compare" search={{ jobs: jobs.slice(0, MAX_JOBS).join(","), names: listOf([sweep.spec.metric.name]) } as never}>
        Compare {jobs.length > MAX_JOBS ? `the best ${MAX_JOBS} trials` : "the trials"}
      </Link>
    </span>
  );
}

function Best({ sweep, now }: { sweep: Sweep; now: number }) {
  const [zoom, setZoom] = useState<Range | null>(null);
  const lines = useMemo(() => bestSoFar(sweep, now), [sweep, now]);
  if (lines.length === 0) return null;
  const rows = () => [
    ["Time", "Trial", sweep.spec.metric.name],
    ...sweep.improvements.map((one) => [one.at, one.trial, one.score]),
  ];
  return (
    <Card title={`Best ${sweep.spec.metric.name} so far`}>
      <LinePlot
        name={`Best ${sweep.spec.metric.name} so far`}
        of={sweep.name}
        lines={lines}
        kind={KINDS.relative}
        zoom={zoom}
        highlight={null}
        rows={rows}
        onZoom={setZoom}
      />
    </Card>
  );
}

function Actions({ sweep, onChange }: { sweep: Sweep; onChange: () => void }) {
  const [asking, setAsking] = useState(false);
  const { mutate, isPending, error } = useMutation({
    mutationFn: (how: "pause" | "resume" | "cancel") => changeSweep(sweep.id, how),
    onSuccess: () => {
      setAsking(false);
      onChange();
    },
  });
  if (sweepEnded(sweep.state)) return null;
  const turn = sweep.state === "paused" ? "resume" : "pause";
  return (
    <div className="actions">
      <button type="button" disabled={isPending} title={error?.message} onClick={() => mutate(turn)}>
        {turn === "resume" ? "Resume" : "Pause"}
      </button>
      <button type="button" className="danger" disabled={isPending} onClick={() => setAsking(true)}>
        Cancel…
      </button>
      {asking && (
        <Dialog title={`Cancel ${sweep.name}?`} onClose={() => setAsking(false)}>
          <p>All its jobs are cancelled. Their metrics, events and logs are kept.</p>
          {error && (
            <Notice tone="bad" title={error.message}>
              <p>{error.hint}</p>
            </Notice>
          )}
          <div className="dialog-actions">
            <button type="button" onClick={() => setAsking(false)}>
              Keep it running
            </button>
            <button type="button" className="danger solid" disabled={isPending} onClick={() => mutate("cancel")}>
              Cancel the sweep
            </button>
          </div>
        </Dialog>
      )}
    </div>
  );
}
