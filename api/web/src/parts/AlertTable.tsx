/** What alerts were raised, newest first, and what became of each. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { alerts as readAlerts, type Alert, type AlertsAsked } from "../alerts";
import { every } from "../cache";
import { full, plural } from "../format";
import { Card } from "./Card";
import { Empty, ErrorNotice, Skeleton } from "./Notice";

const EVERY_MS = 2000;

export function AlertTable({ asked }: { asked: AlertsAsked }) {
  const [cursors, setCursors] = useState<string[]>([]);
  const cursor = cursors.at(-1) ?? null;
  const { data, failureReason: error } = useQuery({
    queryKey: ["alerts", asked, cursor],
    queryFn: ({ signal }) => readAlerts(asked, cursor, signal),
    placeholderData: keepPreviousData,
    refetchInterval: every(EVERY_MS),
  });
  const next = data?.next_cursor ?? null;
  return (
    <Card title="Raised">
      {error && <ErrorNotice error={error} stale={data !== undefined} />}
      {data === undefined && !error && <Skeleton lines={5} />}
      {data?.items.length === 0 && <Empty title="No alerts" />}
      {data && data.items.length > 0 && (
        <div className="scroll">
          <table data-testid="alerts" className="stacked alerts">
            <thead>
              <tr>
                <th>When</th>
                <th>State</th>
                <th>What</th>
                <th>Rule</th>
                <th>To</th>
              </tr>
            </thead>
            <tbody>
              {data.items.map((alert) => (
                <Row key={alert.id} alert={alert} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {(cursors.length > 0 || next !== null) && (
        <div className="pager">
          <button type="button" disabled={cursors.length === 0} onClick={() => setCursors(cursors.slice(0, -1))}>
            Newer
          </button>
          <button type="button" disabled={next === null} onClick={() => next !== null && setCursors([...cursors, next])}>
            Older
          </button>
        </div>
      )}
    </Card>
  );
}

function Row({ alert }: { alert: Alert }) {
  return (
    <tr data-alert={alert.state}>
      <td data-said="When">{full(alert.at)}</td>
      <td data-said="State">
        <b className={`alert-${alert.state}`}>{alert.state}</b>
        {alert.error !== "" && (
          <div className="muted">
            {plural(alert.tries, "try", "tries")}: {alert.error}
          </div>
        )}
      </td>
      <td data-said="What">
        {alert.message}
        {alert.job !== "" && (
          <>
            {" "}
            <Link to="/jobs/$id" params={{ id: alert.job }}>
              Open job
            </Link>
          </>
        )}
      </td>
      <td data-said="Rule">
        {alert.rule} <span className="muted">{alert.project}</span>
      </td>
      <td className="mono" data-said="To">
        {alert.target}
      </td>
    </tr>
  );
}
