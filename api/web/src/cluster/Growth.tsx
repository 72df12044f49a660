/** What the autoscaler was asked for, and what it answered. */
import { plural } from "../format";
import { Notice } from "../parts/Notice";
import { resources, round } from "./usage";
import type { Growing } from "./wire";

export function Growth({ growing }: { growing: Growing | null }) {
  if (growing === null) return <p className="pad muted">No autoscaler is asked: this cluster keeps its size.</p>;
  const { asked, missing, trouble } = growing;
  return (
    <div className="pad">
      <p className="muted">
        May grow to {round(growing.reach_cpus)} CPUs and {round(growing.reach_gpus)} GPUs.
      </p>
      {asked === null && <p>Another control plane asks it, and knows for what.</p>}
      {asked?.length === 0 && <p>Nothing is asked for.</p>}
      <ul>
        {asked?.map((one, at) => (
          <li key={at}>
            asked for room for {plural(one.workers ?? 0, "worker")} of {resources(one)}
          </li>
        ))}
      </ul>
      {missing.length > 0 && (
        <Notice tone="warn" title="Nodes that have not come">
          {missing.map((one, at) => (
            <p key={at}>
              for workers of {resources(one)}
              {one.why && `: ${one.why}`}
            </p>
          ))}
        </Notice>
      )}
      {trouble && missing.length === 0 && <Notice tone="warn" title={trouble} />}
    </div>
  );
}
