/** The jobs in groups of an equal label or parameter: what each came to, and its jobs once it is opened. */
import type { ReactNode } from "react";
import { number, plural } from "../format";
import { Empty, ErrorNotice, Skeleton } from "../parts/Notice";
import type { JobGroup } from "../wire";
import { columnsAsked, inGroup, opened, type Asked } from "./asked";
import { metricsOf } from "./columns";
import { useGroups } from "./reading";

const STATISTICS = ["last", "min", "max"] as const;

interface Props {
  asked: Asked;
  ask: (change: Partial<Asked>) => void;
  /** The list of a group's jobs. */
  list: (asked: Asked) => ReactNode;
}

export function Groups({ asked, ask, list }: Props) {
  const { data, failureReason, isPlaceholderData } = useGroups(asked);
  const metrics = metricsOf(columnsAsked(asked));
  const key = asked.group?.slice("label:".length) ?? "";
  return (
    <>
      {failureReason && <ErrorNotice error={failureReason} stale={data !== undefined} />}
      {data === undefined && !failureReason && <Skeleton lines={6} />}
      {data?.groups.length === 0 && <Empty title="No jobs match" />}
      {data && data.groups.length > 0 && (
        <div className="groups" aria-busy={isPlaceholderData} data-testid="groups">
          {data.groups.map((group) => {
            const open = asked.open?.includes(group.filter) ?? false;
            return (
              <section key={group.filter} aria-label={nameOf(key, group)}>
                <h2>
                  <button type="button" className="group-head" aria-expanded={open} onClick={() => ask(opened(asked, group.filter))}>
                    <span aria-hidden="true">{open ? "▾" : "▸"}</span>
                    <b>{nameOf(key, group)}</b>
                    <span className="muted">{plural(group.jobs, "job")}</span>
                  </button>
                </h2>
                {metrics.length > 0 && <Values group={group} metrics={metrics} />}
                {open && list(inGroup(asked, group.filter))}
              </section>
            );
          })}
          {data.more && <p className="muted">Only the greatest groups are shown. A filter leads to the others.</p>}
        </div>
      )}
    </>
  );
}

/** What each metric of the group came to. */
function Values({ group, metrics }: { group: JobGroup; metrics: readonly string[] }) {
  return (
    <dl className="group-values">
      {metrics.map((name) => {
        const values = group.metrics[name];
        return (
          <div key={name}>
            <dt>{name.replaceAll("_", " ")}</dt>
            {values === undefined && <dd className="muted">–</dd>}
            {values &&
              STATISTICS.map((one) => (
                <dd key={one} title={one === "last" ? "of the newest job" : "of all jobs"}>
                  <span className="muted">{one}</span> {number(values[one])}
                </dd>
              ))}
          </div>
        );
      })}
    </dl>
  );
}

function nameOf(key: string, group: JobGroup): string {
  return group.value === null ? `without ${key}` : `${key}: ${group.value}`;
}
