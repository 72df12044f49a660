/** What the jobs of each project hold, beside its quota. */
import { KINDS, holds, type Kind } from "../projects";
import type { Occupancy } from "./wire";

const WORDS: Record<Kind, string> = { workers: "workers", cpus: "CPUs", gpus: "GPUs" };

export function Quotas({ projects }: { projects: Occupancy["projects"] }) {
  if (projects.length === 0) return <p className="pad muted">You have a role in no project.</p>;
  return (
    <ul className="quotas pad" aria-label="Projects">
      {projects.map((project) => (
        <li key={project.name}>
          <b>{project.name}</b>{" "}
          <span className="muted">
            {project.held.jobs} active, {project.held.waiting} waiting
          </span>
          {KINDS.map((kind) => {
            const limit = project.quota[kind];
            const words = `${holds(project, kind)} ${WORDS[kind]}`;
            return (
              <div key={kind} className="quota">
                {limit !== null && <meter min={0} max={Math.max(limit, project.held[kind], 1e-9)} value={project.held[kind]} aria-label={`${project.name}: ${words}`} />}
                <span className="muted">
                  {words}
                  {limit === null && ", no limit"}
                </span>
              </div>
            );
          })}
        </li>
      ))}
    </ul>
  );
}
