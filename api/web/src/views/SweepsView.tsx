/** All sweeps, newest first. */
import { Link } from "@tanstack/react-router";
import { useEffect } from "react";
import { age, full, number } from "../format";
import { Empty, ErrorNotice, Skeleton } from "../parts/Notice";
import { StateBadge } from "../parts/State";
import { useSweeps } from "../sweeps/reading";
import type { Sweep } from "../wire";

export function SweepsView() {
  const { data, failureReason: error, dataUpdatedAt: now } = useSweeps();
  useEffect(() => {
    document.title = "Sweeps · Ringleader";
  }, []);
  return (
    <>
      <div className="view-head">
        <h1>Sweeps</h1>
      </div>
      {error && <ErrorNotice error={error} stale={data !== undefined} />}
      {data === undefined ? !error && <Skeleton lines={6} /> : <Listed found={data} now={now} />}
    </>
  );
}

function Listed({ found, now }: { found: readonly Sweep[]; now: number }) {
  if (found.length === 0) {
    return (
      <Empty title="No sweeps yet">
        <p className="muted">
          A sweep trains many trials of one job file: <code>ringleader sweep sweep.yaml</code>
        </p>
      </Empty>
    );
  }
  return (
    <section className="card" aria-label="All sweeps">
      <div className="scroll" tabIndex={0} role="region" aria-label="All sweeps">
        <table data-testid="sweeps" className="stacked">
          <thead>
            <tr>
              <th scope="col">Sweep</th>
              <th scope="col">State</th>
              <th scope="col">Project</th>
              <th scope="col" className="num">
                Trials ended
              </th>
              <th scope="col">Metric</th>
              <th scope="col" className="num">
                Best
              </th>
              <th scope="col">Made</th>
            </tr>
          </thead>
          <tbody>
            {found.map((one) => (
              <tr key={one.id} data-sweep={one.id}>
                <td data-said="Sweep">
                  <Link to="/sweeps/$id" params={{ id: one.id }} className="job-link">
                    {one.name}
                  </Link>
                </td>
                <td data-said="State">
                  <StateBadge state={one.state} />
                </td>
                <td data-said="Project">{one.project}</td>
                <td className="num" data-said="Trials ended">
                  {one.ended} / {one.trials}
                </td>
                <td data-said="Metric">{one.spec.metric.name}</td>
                <td className="num" data-said="Best">{number(one.best_score)}</td>
                <td data-said="Made" title={full(one.created_at)}>{age(one.created_at, now)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
