/** Who changed what, and who was refused, newest first. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { auditPage } from "../access";
import { every } from "../cache";
import { full } from "../format";
import { Card } from "./Card";
import { ErrorNotice, Skeleton } from "./Notice";

const EVERY_MS = 5000;

export function AuditTable() {
  const [pages, setPages] = useState<number[]>([]);
  const before = pages.at(-1) ?? null;
  const { data, failureReason: error } = useQuery({
    queryKey: ["audit", before],
    queryFn: ({ signal }) => auditPage(before, signal),
    refetchInterval: every(EVERY_MS),
  });
  const next = data?.next ?? null;
  return (
    <Card title="Audit log">
      {error && <ErrorNotice error={error} stale={data !== undefined} />}
      {data === undefined && !error && <Skeleton lines={5} />}
      {data && (
        <div className="scroll">
          <table data-testid="audit" className="stacked">
            <thead>
              <tr>
                <th>When</th>
                <th>Who</th>
                <th>Request</th>
                <th>Project</th>
                <th>Target</th>
                <th>Outcome</th>
                <th>Source</th>
              </tr>
            </thead>
            <tbody>
              {data.items.map((entry) => (
                <tr key={entry.id}>
                  <td data-said="When">{full(entry.at)}</td>
                  <td data-said="Who">{entry.who}</td>
                  <td className="mono clip" data-said="Request" title={`${entry.method} ${entry.path}`}>
                    {entry.method} {entry.path}
                  </td>
                  <td data-said="Project">{entry.project}</td>
                  <td className="mono clip" data-said="Target" title={entry.target}>
                    {entry.target}
                  </td>
                  <td data-said="Outcome">{entry.outcome}</td>
                  <td className="mono" data-said="Source">{entry.source}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {(pages.length > 0 || next !== null) && (
        <div className="pager">
          <button type="button" disabled={pages.length === 0} onClick={() => setPages(pages.slice(0, -1))}>
            Newer
          </button>
          <button type="button" disabled={next === null} onClick={() => next !== null && setPages([...pages, next])}>
            Older
          </button>
        </div>
      )}
    </Card>
  );
}
