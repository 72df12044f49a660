/** The checkpoints of a job and its final weights: to download, and to begin another job with. */
import { useQuery, keepPreviousData } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { artifactUrl, checkpoints as readCheckpoints, weightsUrl } from "../api";
import { age, bytes, count, full } from "../format";
import { Card } from "../parts/Card";
import { ErrorNotice, Notice } from "../parts/Notice";
import { hasEnded, isHosted, type Artifact, type Job, type JobEvent, type KeptCheckpoint } from "../wire";
import { finalBeginning, kindOf, nameOf, told, unsaved, WEIGHTS } from "./kept";

interface Props {
  job: Job;
  events: readonly JobEvent[];
  artifacts: readonly Artifact[];
  now: number;
}

export function Checkpoints({ job, events, artifacts, now }: Props) {
  const { data, failureReason } = useQuery({
    // Read again with each one that the job tells of, and at its end.
    queryKey: ["jobs", job.id, "checkpoints", told(events, "checkpoint.saved"), hasEnded(job.state)],
    queryFn: ({ signal }) => readCheckpoints(job.id, signal),
    placeholderData: keepPreviousData,
  });
  const failed = useMemo(() => unsaved(events), [events]);
  const weights = artifacts.find(({ name }) => name === WEIGHTS);
  if (!failureReason && !failed && !weights && !data?.length) return null;
  return (
    <Card
      title="Checkpoints"
      className="kept-card"
      aside={data && data.length > 0 && <span className="muted">the newest {count(data.length)}, each whole</span>}
    >
      {failureReason && <ErrorNotice error={failureReason} stale={data !== undefined} />}
      {failed && (
        <Notice tone="warn" title={`The checkpoint${failed.step === null ? "" : ` of step ${count(failed.step)}`} could not be written`}>
          <p>{failed.why}</p>
        </Notice>
      )}
      <div className="scroll" tabIndex={0} role="region" aria-label="Checkpoints">
        <table data-testid="checkpoints" className="stacked">
          <thead>
            <tr>
              <th className="num">Step</th>
              <th>Kind</th>
              <th>Saved</th>
              <th className="num">Attempt</th>
              <th className="num">Size</th>
              <th aria-label="Actions" />
            </tr>
          </thead>
          <tbody>
            {weights && <Final job={job} weights={weights} begins={finalBeginning(job, artifacts)} now={now} />}
            {data?.map((one) => (
              <Row key={one.uri} job={job} checkpoint={one} now={now} />
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function Final({ job, weights, begins, now }: { job: Job; weights: Artifact; begins: string | null; now: number }) {
  return (
    <tr data-kind="final">
      <td className="num" data-said="Step">{count(job.progress.step)}</td>
      <td data-said="Kind">
        <b>final weights</b>
      </td>
      <td data-said="Saved" title={job.finished_at ? full(job.finished_at) : undefined}>{job.finished_at ? age(job.finished_at, now) : "–"}</td>
      <td className="num" data-said="Attempt">{job.attempt}</td>
      <td className="num" data-said="Size">{bytes(weights.size_bytes)}</td>
      <td className="row-acts">
        <a href={artifactUrl(job.id, WEIGHTS)} download>
          Download<span className="hidden"> the final weights</span>
        </a>
        {begins && <StartHere job={job} begin={begins} what="the final weights" />}
      </td>
    </tr>
  );
}

function Row({ job, checkpoint, now }: { job: Job; checkpoint: KeptCheckpoint; now: number }) {
  const what = `step ${count(checkpoint.step)}`;
  return (
    <tr data-step={checkpoint.step}>
      <td className="num" data-said="Step" title={checkpoint.uri}>
        {count(checkpoint.step)}
      </td>
      <td data-said="Kind">{kindOf(checkpoint)}</td>
      <td data-said="Saved" title={full(checkpoint.at)}>{age(checkpoint.at, now)}</td>
      <td className="num" data-said="Attempt">{checkpoint.attempt}</td>
      <td className="num" data-said="Size">{bytes(checkpoint.size_bytes)}</td>
      <td className="row-acts">
        <a href={weightsUrl(job.id, nameOf(checkpoint))} download>
          Weights<span className="hidden"> of {what}</span>
        </a>
        <StartHere job={job} begin={checkpoint.uri} what={what} />
      </td>
    </tr>
  );
}

/** Another library's engine takes over no weights. */
function StartHere({ job, begin, what }: { job: Job; begin: string; what: string }) {
  if (isHosted(job.spec)) return null;
  return (
    <Link to="/submit" search={{ from: job.id, begin }}>
      Start from here<span className="hidden"> with {what}</span>
    </Link>
  );
}
