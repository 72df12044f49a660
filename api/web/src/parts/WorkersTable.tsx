/** Who is at work: one row a worker or server. */
import { bytes, shards } from "../format";
import { nodeName, type NodeNames } from "../nodes";
import type { Worker } from "../wire";
import { StateBadge } from "./State";

/** What workers use, as it was measured a few seconds ago; null where it was not. */
const USES = [
  { title: "CPU", of: ({ cpu_percent }: Worker) => (cpu_percent == null ? null : `${Math.round(cpu_percent)} %`) },
  { title: "Memory", of: ({ memory_bytes }: Worker) => (memory_bytes == null ? null : bytes(memory_bytes)) },
  { title: "GPU memory", of: ({ gpu_memory_bytes }: Worker) => (gpu_memory_bytes == null ? null : bytes(gpu_memory_bytes)) },
] as const;

export function WorkersTable({ workers, names, ended }: { workers: readonly Worker[]; names: NodeNames; ended: boolean }) {
  if (workers.length === 0) {
    return (
      <p className="muted pad">{ended ? "The job has ended; its workers are gone." : "No workers yet."}</p>
    );
  }
  const uses = USES.filter(({ of }) => workers.some((worker) => of(worker) !== null));
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label="Workers">
      <table data-testid="workers" className="stacked">
        <thead>
          <tr>
            <th>Worker</th>
            <th>Role</th>
            <th className="num">Rank</th>
            <th className="num">PID</th>
            <th>Node</th>
            <th>State</th>
            <th className="num">Generation</th>
            <th>Shards</th>
            {uses.map(({ title }) => (
              <th key={title} className="num">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {workers.map((worker) => (
            <tr key={worker.id} data-worker={worker.id}>
              <td data-said="Worker">
                <b>{worker.id}</b>
              </td>
              <td data-said="Role">{worker.role}</td>
              <td className="num" data-said="Rank">{worker.rank ?? "–"}</td>
              <td className="num mono" data-said="PID">{worker.pid}</td>
              <td className="mono clip" data-said="Node" title={worker.node}>
                {nodeName(names, worker.node)}
              </td>
              <td data-said="State">
                <StateBadge state={worker.state} />
              </td>
              <td className="num" data-said="Generation">{worker.generation}</td>
              <td data-said="Shards">{shards(worker.shards)}</td>
              {uses.map(({ title, of }) => (
                <td key={title} className="num short" data-said={title}>
                  {of(worker) ?? "–"}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
