/** The projects one has a role in: what their jobs hold of their quotas. An admin of all shares the cluster out. */
import { useQuery } from "@tanstack/react-query";
import { useState, type SubmitEvent } from "react";
import { ApiError } from "../api";
import { every } from "../cache";
import { KINDS, limitOf, projects as readProjects, shareOut, holds, type Kind, type Project } from "../projects";
import { Card } from "./Card";
import { Dialog } from "./Dialog";
import { ErrorNotice, Notice, Skeleton } from "./Notice";

const EVERY_MS = 5000;
const WORDS: Record<Kind, string> = { workers: "Workers", cpus: "CPUs", gpus: "GPUs" };

export function Projects({ mayShare }: { mayShare: boolean }) {
  const { data, failureReason: error, refetch } = useQuery({
    queryKey: ["projects"],
    queryFn: ({ signal }) => readProjects(signal),
    refetchInterval: every(EVERY_MS),
  });
  const [chosen, setChosen] = useState<Project | null>(null);
  const close = (): void => {
    setChosen(null);
    void refetch();
  };
  return (
    <Card title="Projects">
      {error && <ErrorNotice error={error} stale={data !== undefined} />}
      {data === undefined && !error && <Skeleton lines={3} />}
      {data && (
        <div className="scroll">
          <table data-testid="projects" className="stacked">
            <thead>
              <tr>
                <th>Name</th>
                <th>Your role</th>
                <th className="num">Weight</th>
                {KINDS.map((kind) => (
                  <th key={kind} className="num">
                    {WORDS[kind]}
                  </th>
                ))}
                <th className="num">Active</th>
                <th className="num">Waiting</th>
                {mayShare && <th aria-label="Actions" />}
              </tr>
            </thead>
            <tbody>
              {data.map((project) => (
                <tr key={project.name} data-project={project.name}>
                  <td data-said="Name">
                    <b>{project.name}</b>
                  </td>
                  <td data-said="Your role">{project.role}</td>
                  <td className="num" data-said="Weight">{project.weight}</td>
                  {KINDS.map((kind) => (
                    <td key={kind} className="num" data-said={WORDS[kind]}>
                      {holds(project, kind)}
                    </td>
                  ))}
                  <td className="num" data-said="Active">{project.held.jobs}</td>
                  <td className="num" data-said="Waiting">{project.held.waiting}</td>
                  {mayShare && (
                    <td>
                      <button type="button" className="quiet" onClick={() => setChosen(project)}>
                        Edit…
                      </button>
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {chosen && <Share project={chosen} onClose={close} />}
    </Card>
  );
}

function Share({ project, onClose }: { project: Project; onClose: () => void }) {
  const [weight, setWeight] = useState(String(project.weight));
  const [limits, setLimits] = useState<Record<Kind, string>>({
    workers: String(project.quota.workers ?? ""),
    cpus: String(project.quota.cpus ?? ""),
    gpus: String(project.quota.gpus ?? ""),
  });
  const [failed, setFailed] = useState<string | null>(null);
  const send = (event: SubmitEvent): void => {
    event.preventDefault();
    const [workers, cpus, gpus] = KINDS.map((kind) => limitOf(limits[kind]));
    if (!workers || !cpus || !gpus || !(Number(weight) > 0)) {
      setFailed("The weight must be above 0, and each limit 0 or more.");
      return;
    }
    const quota = { workers: workers.limit, cpus: cpus.limit, gpus: gpus.limit };
    shareOut(project.name, Number(weight), quota).then(onClose, (cause: unknown) =>
      setFailed(cause instanceof ApiError ? cause.message : String(cause)),
    );
  };
  return (
    <Dialog title={`Share and quota of ${project.name}`} onClose={onClose}>
      <p>
        Projects share the cluster in proportion to their weights. A quota limits what a project's jobs hold at once;
        leave it empty for no limit. Lowering a quota takes surplus workers back but ends no job.
      </p>
      <form onSubmit={send}>
        <div className="field-row">
          <label>
            Weight
            <input name="weight" value={weight} onChange={(event) => setWeight(event.target.value)} />
          </label>
          {KINDS.map((kind) => (
            <label key={kind}>
              {WORDS[kind]}
              <input
                name={kind}
                value={limits[kind]}
                placeholder="no limit"
                onChange={(event) => setLimits({ ...limits, [kind]: event.target.value })}
              />
            </label>
          ))}
        </div>
        {failed !== null && <Notice tone="bad" title={failed} />}
        <div className="dialog-actions">
          <button type="button" onClick={onClose}>
            Leave unchanged
          </button>
          <button type="submit" className="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
