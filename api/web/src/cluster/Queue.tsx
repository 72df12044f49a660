/** The queue in its order: who waits, since when, why, and when a job starts at the latest where that is known. */
import { Link } from "@tanstack/react-router";
import { duration, full, plural } from "../format";
import { WithJobs } from "../parts/WithJobs";
import { OTHERS } from "./usage";
import type { WaitingJob } from "./wire";

export function Queue({ queue, waiting, now }: { queue: readonly WaitingJob[]; waiting: number; now: number }) {
  if (waiting === 0) return <p className="pad muted">No job waits.</p>;
  return (
    <>
      <div className="scroll" tabIndex={0} role="region" aria-label="Jobs that wait">
        <table data-testid="queue" className="stacked">
          <thead>
            <tr>
              <th className="num">Place</th>
              <th>Job</th>
              <th className="num">Workers</th>
              <th>Has waited</th>
              <th>Why</th>
              <th>Starts at the latest</th>
            </tr>
          </thead>
          <tbody>
            {queue.map((one) => (
              <tr key={one.place}>
                <td className="num" data-said="Place">
                  {one.place}
                </td>
                <td data-said="Job">
                  {one.job === null ? (
                    <span className="muted">{OTHERS}</span>
                  ) : (
                    <Link to="/jobs/$id" params={{ id: one.job }}>
                      {one.name}
                    </Link>
                  )}{" "}
                  <span className="muted">{one.project}</span>
                </td>
                <td className="num" data-said="Workers">
                  {one.workers ?? "–"}
                </td>
                <td data-said="Has waited">{one.since === null ? "–" : duration((now - Date.parse(one.since)) / 1000)}</td>
                <td data-said="Why" title={one.why?.hint}>
                  {one.why ? <WithJobs text={one.why.message} /> : <span className="muted">–</span>}
                </td>
                <td data-said="Starts at the latest">{one.starts_by === null ? <span className="muted">not known</span> : full(one.starts_by)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {waiting > queue.length && <p className="pad muted">and {plural(waiting - queue.length, "job")} behind them</p>}
    </>
  );
}
