/** The few figures one looks at first. */
import type { ReactNode } from "react";
import { count, duration, number } from "../format";
import type { Recovery } from "../history";
import { inOrder } from "../series";
import { hasEnded, workerBounds, type Job, type MetricPoint } from "../wire";

interface Props {
  job: Job;
  points: Record<string, MetricPoint[]>;
  recovered: readonly Recovery[];
}

export function Tiles({ job, points, recovered }: Props) {
  const { min, max } = workerBounds(job.spec);
  const last = (name: string): number | undefined => inOrder(points[name] ?? []).at(-1)?.value;
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
        note={worst ? `slowest ${duration(worst.totalS)}` : "no worker lost"}
      />
      <Tile
        label="Steps lost"
        value={count(stepsLost)}
        note={lostWhere(attempts, recoveries)}
        tone={stepsLost > 0 ? "bad" : "good"}
      />
      <Tile label="Failure budget" value={`${job.failures.spent} / ${job.failures.max}`} note="spent" />
    </dl>
  );
}

/** Over what the lost steps are counted. */
export function lostWhere(attempts: number, recoveries: number): string {
  if (attempts > 1) return `over ${attempts} attempts`;
  return recoveries > 0 ? "over all recoveries" : "nothing to lose yet";
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
