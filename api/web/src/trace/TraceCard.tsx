/** The trace that a job has left: opened here once it is asked for. */
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import { artifactUrl, trace as readTrace } from "../api";
import { bytes } from "../format";
import { Card } from "../parts/Card";
import { ErrorNotice, Skeleton } from "../parts/Notice";
import type { Artifact } from "../wire";

const FILE = "trace.json";
/** Beyond this a browser takes too long. */
const MOST_BYTES = 64_000_000;
const TraceView = lazy(async () => ({ default: (await import("./TraceView")).TraceView }));

export function TraceCard({ job, artifacts }: { job: string; artifacts: readonly Artifact[] }) {
  const [open, setOpen] = useState(false);
  const file = artifacts.find(({ name }) => name === FILE);
  const { data, failureReason } = useQuery({
    queryKey: ["jobs", job, "trace", file?.size_bytes],
    queryFn: ({ signal }) => readTrace(job, FILE, signal),
    enabled: open,
    staleTime: Infinity,
    gcTime: 0,
  });
  if (!file) return null;
  const fits = file.size_bytes <= MOST_BYTES;
  return (
    <Card
      title="Trace"
      aside={
        <a href={artifactUrl(job, FILE)} download>
          {FILE} for Perfetto
        </a>
      }
    >
      {!open && (
        <p className="pad">
          {fits ? (
            <button type="button" onClick={() => setOpen(true)}>
              Open the trace, {bytes(file.size_bytes)}
            </button>
          ) : (
            <span className="muted">
              It has {bytes(file.size_bytes)}; the page opens {bytes(MOST_BYTES)} at most.
            </span>
          )}
        </p>
      )}
      {open && failureReason && <ErrorNotice error={failureReason} stale={false} />}
      {open && !failureReason && (
        <Suspense fallback={<Skeleton lines={6} />}>{data === undefined ? <Skeleton lines={6} /> : <TraceView text={data} />}</Suspense>
      )}
    </Card>
  );
}
