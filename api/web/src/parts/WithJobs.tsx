/** A sentence of the API in which jobs stand by their ids: each a link, by its name. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Fragment } from "react";
import { job as readJob } from "../api";

const JOB = /\b(job_[0-9A-Za-z]{26})\b/;
const KEPT_MS = 60_000;

export function WithJobs({ text }: { text: string }) {
  // Split at a group: every second part is an id.
  return text.split(JOB).map((part, at) => <Fragment key={at}>{at % 2 === 1 ? <JobLink id={part} /> : part}</Fragment>);
}

/** By its id until its name is read, and where it may not be. */
function JobLink({ id }: { id: string }) {
  const { data } = useQuery({ queryKey: ["job-name", id], queryFn: ({ signal }) => readJob(id, signal), select: ({ name }) => name, staleTime: KEPT_MS });
  return (
    <Link to="/jobs/$id" params={{ id }} title={id}>
      {data ?? id}
    </Link>
  );
}
