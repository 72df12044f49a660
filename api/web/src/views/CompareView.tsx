/** Runs side by side: curves, last values, job files, and what the runs differ in. */
import { useEffect, useMemo, useState } from "react";
import { comparisonUrl } from "../api";
import { useChange } from "../compare/change";
import { Chooser } from "../compare/Chooser";
import { differences } from "../compare/differences";
import { dimensionsOf } from "../compare/dimensions";
import { finalsOf } from "../compare/finals";
import { FinalTable } from "../compare/FinalTable";
import { JobFiles } from "../compare/JobFiles";
import { Legend } from "../compare/Legend";
import { MetricCard } from "../compare/MetricCard";
import { Notes } from "../compare/Notes";
import { Parameters } from "../compare/Parameters";
import { useFiles, useNames, useRecoveries, useStretch, useWhole } from "../compare/reading";
import { runsOf, type Files } from "../compare/runs";
import type { Comparison } from "../wire";
import { parseCompare, reportQuery, type CompareState, type Parsed } from "../compare/state";
import { MOST_STRIPS, stripsOf } from "../compare/strips";
import { Toolbar } from "../compare/Toolbar";
import { CopyLink } from "../parts/CopyLink";
import { ReportLink } from "../parts/ReportLink";
import { ErrorNotice, Skeleton } from "../parts/Notice";
import "../styles/compare.css";

export function CompareView({ query }: { query: string }) {
  const parsed = useMemo(() => parseCompare(query), [query]);
  const { state } = parsed;
  const whole = useWhole(state);
  useEffect(() => {
    document.title = "Compare · Ringleader";
  }, []);
  return (
    <>
      <div className="view-head">
        <h1>Compare</h1>
        {state.jobs.length > 0 && (
          <div className="actions">
            <CopyLink />
            {whole.data !== undefined && whole.data.jobs.length > 0 && <ReportLink href={comparisonUrl(reportQuery(state))} />}
          </div>
        )}
      </div>
      {state.jobs.length === 0 ? (
        <section className="card">
          <Chooser chosen={[]} />
        </section>
      ) : (
        <>
          <Others key={state.jobs.join(",")} chosen={state.jobs} />
          {whole.failureReason && <ErrorNotice error={whole.failureReason} stale={whole.data !== undefined} />}
          {whole.data === undefined ? !whole.failureReason && <Skeleton lines={8} /> : <Answer parsed={parsed} answer={whole.data} />}
        </>
      )}
    </>
  );
}

/** The list of jobs to choose from, read once it is opened. */
function Others({ chosen }: { chosen: readonly string[] }) {
  const [open, setOpen] = useState(false);
  return (
    <details className="card compare-change" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Choose other runs</summary>
      {open && <Chooser chosen={chosen} />}
    </details>
  );
}

const NO_FILES: Files = new Map();

function Answer({ parsed, answer }: { parsed: Parsed; answer: Comparison }) {
  const { state } = parsed;
  const change = useChange();
  const chosen = state.run;
  const [pointed, setPointed] = useState<string | null>(null);
  const runs = useMemo(() => runsOf(answer), [answer]);
  const ids = runs.map((run) => run.id);
  const zoom = useZoom(state);
  const files = useFiles(ids).data;
  const stretch = useStretch(state, zoom, files);
  const names = useNames(ids);
  const recoveries = useRecoveries(state.strips ? ids.slice(0, MOST_STRIPS) : []).data;
  const known = files ?? NO_FILES;
  // Lines by step, wall and relative time know nothing of job files: they need not be made anew once these are read.
  const byRows = state.axis === "rows" ? known : NO_FILES;
  const strips = useMemo(
    () => (state.strips ? stripsOf(answer, runs.slice(0, MOST_STRIPS), state.axis, byRows, recoveries) : []),
    [state.strips, answer, runs, state.axis, byRows, recoveries],
  );
  const finals = useMemo(() => finalsOf(answer), [answer]);
  const listed = useMemo(() => runs.filter((run) => known.has(run.id)), [runs, known]);
  const different = useMemo(() => differences(listed.map((run) => known.get(run.id)?.spec ?? {})), [listed, known]);
  const dimensions = useMemo(
    () => dimensionsOf(listed.map((run) => run.id), different, state.names, finals),
    [listed, different, state.names, finals],
  );
  const highlight = pointed ?? chosen;
  if (runs.length === 0) return <Notes parsed={parsed} answer={answer} files={undefined} />;
  return (
    <>
      <Notes parsed={parsed} answer={answer} files={files} />
      {stretch.failureReason && <ErrorNotice error={stretch.failureReason} stale />}
      <Toolbar state={state} names={names.data ?? []} />
      <Legend runs={runs} chosen={chosen} onChoose={(run) => change({ run })} onPoint={setPointed} />
      {state.names.map((name) => (
        <MetricCard
          key={name}
          name={name}
          answer={stretch.data ?? answer}
          runs={runs}
          files={byRows}
          axis={state.axis}
          zoom={zoom}
          log={state.log.includes(name)}
          smoothing={state.smoothing[name] ?? 0}
          strips={strips}
          highlight={highlight}
        />
      ))}
      <FinalTable runs={runs} names={state.names} finals={finals} files={known} baseline={state.baseline} />
      {files && <JobFiles runs={listed} different={different} />}
      {dimensions.length > 1 && (
        <Parameters
          runs={listed}
          dimensions={dimensions}
          scatter={state.scatter}
          onScatter={(scatter) => change({ scatter })}
          highlight={highlight}
        />
      )}
    </>
  );
}

/** The stretch, the same object while the address says the same. */
function useZoom({ zoom }: CompareState) {
  const [from, to] = [zoom?.[0], zoom?.[1]];
  return useMemo(() => (from === undefined || to === undefined ? null : ([from, to] as const)), [from, to]);
}
