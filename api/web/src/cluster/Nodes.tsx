/** Nodes with what each has, and which job takes what of it. */
import { Link } from "@tanstack/react-router";
import { node as shortId, plural } from "../format";
import { KINDS, nameOf, partsOf, resources, round, tonesOf, WORDS, type Kind, type Part } from "./usage";
import type { JobOnNode, OccupiedNode } from "./wire";

export function Nodes({ nodes }: { nodes: readonly OccupiedNode[] }) {
  const tones = tonesOf(nodes);
  return (
    <ul className="nodes" aria-label="Nodes">
      {nodes.map((one) => (
        <li key={one.id} className="node" data-node={one.id}>
          <h3 title={one.id}>
            {one.address && `${one.address} `}
            <span className={one.address && "muted"}>{shortId(one.id)}</span> <span className="muted">{resources(one)}</span>
          </h3>
          {KINDS.filter((kind) => one[kind] > 0).map((kind) => (
            <Share key={kind} kind={kind} whole={one[kind]} parts={partsOf(one, kind, tones)} />
          ))}
          <ul className="node-jobs">
            {one.jobs.map((job, at) => (
              <li key={job.job ?? at} className={`tone-${tones.get(job.job ?? "") ?? 4}`}>
                <i aria-hidden="true" /> <Name job={job} /> <span className="muted">{taken(job)}</span>
              </li>
            ))}
          </ul>
          {one.jobs.length === 0 && <p className="muted">No job is here.</p>}
        </li>
      ))}
    </ul>
  );
}

function Name({ job }: { job: JobOnNode }) {
  return job.job === null ? (
    <span className="muted">{nameOf(job)}</span>
  ) : (
    <Link to="/jobs/$id" params={{ id: job.job }}>
      {nameOf(job)}
    </Link>
  );
}

/** How many places it has, with whom that is known, and what they take. */
function taken(job: JobOnNode): string {
  const places = [...(job.places > 0 ? [plural(job.places, "place")] : []), ...(job.servers > 0 ? [plural(job.servers, "server")] : [])];
  const members = job.members.length > 0 ? ` (${job.members.join(", ")})` : "";
  return `${places.join(", ")}${members}: ${resources(job)}`;
}

function Share({ kind, whole, parts }: { kind: Kind; whole: number; parts: readonly Part[] }) {
  const reserved = parts.reduce((sum, part) => sum + part.amount, 0);
  const words = parts.map((part) => `${part.name} ${round(part.amount)}`).join(", ");
  const told = `${round(reserved)} of ${round(whole)} ${WORDS[kind]} reserved${words && `: ${words}`}`;
  return (
    <div className="share" role="img" aria-label={told} title={told}>
      <span className="share-bar">
        {parts.map((part, at) => (
          <span key={at} className={`tone-${part.tone ?? "others"}`} style={{ width: `${(100 * part.amount) / Math.max(whole, reserved)}%` }} />
        ))}
      </span>
      <span className="muted">
        {round(reserved)}/{round(whole)} {WORDS[kind]} reserved
      </span>
    </div>
  );
}
