/** The few figures one looks at first. */
import type { ReactNode } from "react";
import { count, duration, number, plural } from "../format";
import type { Recovery } from "../history";
import { hasEnded, isHosted, workerBounds, type Curve, type Job } from "../wire";

interface Props {
  job: Job;
  curves: ReadonlyMap<string, Curve> | undefined;
  recovered: readonly Recovery[];
  /** How many workers were lost, as the events say. */
  lost: number;
}

export function Tiles({ job, curves, recovered, lost }: Props) {
  const { min, max } = workerBounds(job.spec);
  const last = (name: string) => curves?.get(name)?.values.at(-1);
  const worst = recovered.reduce<Recovery | undefined>(
    (most, one) => (most && most.totalS >= one.totalS ? most : one),
    undefined,
  );
  const { attempts, recoveries, steps_lost: stepsLost } = job.totals;
  return (
    <dl className="tiles">
      <Tile
        label="Workers"
        value={hasEnded(job.state) ? "–" : count(job.world_size)}
        note={min === max ? `of ${max}` : `${min}–${max} allowed`}
      />
      <Tile label="Loss" value={number(last("loss"))} note={`epoch ${job.progress.epoch}`} />
      <Tile label="Throughput" value={number(last("samples_per_s"))} note="samples/s" />
      <Tile
        label="Recoveries"
        value={count(recoveries)}
        note={worst ? `slowest ${duration(worst.totalS)}` : unrecovered(attempts, recoveries, lost)}
      />
      {isHosted(job.spec) ? (
        <Tile label="Steps lost" value="–" note="only the program knows" />
      ) : (
        <Tile
          label="Steps lost"
          value={count(stepsLost)}
          note={lostWhere(attempts, recoveries, hasEnded(job.state))}
          tone={stepsLost > 0 ? "bad" : "good"}
        />
      )}
      <Tile label="Failure budget" value={`${job.failures.spent} / ${job.failures.max}`} note="spent" />
    </dl>
  );
}

/** What there was instead of recoveries: an attempt that ends with its workers recovers nobody. */
function unrecovered(attempts: number, recoveries: number, lost: number): string {
  const where = attempts > 1 ? `over ${attempts} attempts` : "";
  if (recoveries > 0) return where;
  return lost > 0 ? [`${plural(lost, "worker")} lost`, where].join(" ").trim() : where || "no worker lost";
}

/** Over what the lost steps are counted. */
export function lostWhere(attempts: number, recoveries: number, ended: boolean): string {
  if (attempts > 1) return `over ${attempts} attempts`;
  if (recoveries > 0) return "over all recoveries";
  return ended ? "over the whole job" : "so far";
}

function Tile({
  label,
  value,
  note,
  tone,
}: {
  label: string;
  value: ReactNode;
  note: string;
  tone?: string;
}) {
  return (
    <div className="tile">
      <dt>{label}</dt>
      <dd className={tone}>{value}</dd>
      <dd className="tile-note">{note}</dd>
    </div>
  );
}
