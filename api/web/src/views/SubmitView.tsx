/** Submitting a job: a job file to edit, a few fields for the usual changes, errors at their lines, a preview. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useMemo, useRef, useState } from "react";
import { stringify } from "yaml";
import example from "../../../../jobs/ringleader_jobs/digits.yaml?raw";
import { ApiError, job as readJob, jobs as readJobs, newKey, preview, read as readApi, submit } from "../api";
import { full } from "../format";
import { lineOf, needsUpload, read, withValue } from "../jobfile";
import { Card } from "../parts/Card";
import { Editor, typed, type Marked } from "../parts/Editor";
import { ErrorNotice, Notice, Skeleton } from "../parts/Notice";
import { Preview } from "../parts/Preview";
import { SpecFields } from "../parts/SpecFields";
import type { Begun } from "../submit/begun";
import { KeyHelp } from "../submit/KeyHelp";
import { saidIn, type Schemas } from "../submit/schema";
import { TEMPLATES } from "../submit/templates";
import type { Admission, Job } from "../wire";

/** So many earlier jobs are there to begin with; others are cloned from their pages. */
const NEWEST = 20;

type Answer = { kind: "preview"; admission: Admission } | { kind: "refused"; error: ApiError };

/** `from`: the id of a job whose job file is the beginning; `begin`: the weights that its clone begins with. */
export function SubmitView({ from, begin }: Begun) {
  const earlier = useQuery({
    queryKey: ["jobs", from, "to clone"],
    queryFn: ({ signal }) => readJob(from ?? "", signal),
    enabled: from !== undefined,
    staleTime: Infinity,
  });
  const schemas = useSchemas();
  // Without the schema the form has all keys.
  const waits = from !== undefined && schemas.isPending && schemas.isFetching;
  if (waits || (earlier.isPending && earlier.isFetching)) return <Skeleton lines={9} />;
  const text = earlier.data ? textOf(earlier.data.spec, schemas.data) : example;
  return (
    <>
      {earlier.error && <ErrorNotice error={earlier.error} stale={false} />}
      <Submission begun={earlier.data && begin !== undefined ? withValue(text, ["init_from"], begin) : text} />
    </>
  );
}

function Submission({ begun }: { begun: string }) {
  const navigate = useNavigate();
  const [text, setText] = useState(begun);
  const [line, setLine] = useState(0);
  const schemas = useSchemas();
  const [busy, setBusy] = useState<"submit" | "preview" | null>(null);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const key = useRef({ text: "", key: "" });
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    document.title = "Submit · Ringleader";
  }, []);
  const { spec, fault } = useMemo(() => read(text), [text]);
  const marks = useMemo(() => marksOf(text, answer, fault), [text, answer, fault]);
  const edit = (next: string): void => {
    setText(next);
    setAnswer(null);
  };
  const replaceLine = (next: string): void => {
    const lines = text.split("\n");
    const from = lines.slice(0, line).reduce((length, one) => length + one.length + 1, 0);
    if (area.current) typed(area.current, next, from, from + (lines[line] ?? "").length);
  };
  const ask = async (what: "submit" | "preview"): Promise<void> => {
    setBusy(what);
    setAnswer(null);
    try {
      if (what === "preview") {
        setAnswer({ kind: "preview", admission: await preview(spec) });
        return;
      }
      if (key.current.text !== text) key.current = { text, key: newKey() };
      const job = await submit(spec, key.current.key);
      await navigate({ to: "/jobs/$id", params: { id: job.id } });
    } catch (error) {
      setAnswer({
        kind: "refused",
        error: error instanceof ApiError ? error : new ApiError({ status: 0, detail: String(error) }),
      });
    } finally {
      setBusy(null);
    }
  };
  const ready = spec !== null && busy === null;
  return (
    <>
      <div className="view-head">
        <h1>Submit a job</h1>
      </div>
      <div className="columns">
        <div className="column-wide">
          <Card title="Job file" aside={<Templates schemas={schemas.data} onChoose={edit} />}>
            <Editor text={text} onChange={edit} onLine={setLine} marks={marks} area={area} />
            {schemas.data && (
              <KeyHelp schemas={schemas.data} lines={text.split("\n")} at={line} onChoose={replaceLine} />
            )}
          </Card>
        </div>
        <div className="column-narrow">
          <Card title="Common settings">
            <SpecFields text={text} spec={spec} onChange={edit} />
            {needsUpload(spec) && (
              <Notice tone="warn" title="A browser cannot upload working_dir">
                <p>
                  Use <code>ringleader submit FILE</code> instead, or an entrypoint of a package that is installed on
                  the nodes.
                </p>
              </Notice>
            )}
            <div className="submit-actions">
              <button type="button" className="primary" disabled={!ready} onClick={() => void ask("submit")}>
                {busy === "submit" ? "Submitting…" : "Submit"}
              </button>
              <button type="button" disabled={!ready} onClick={() => void ask("preview")}>
                {busy === "preview" ? "Checking…" : "Preview"}
              </button>
            </div>
          </Card>
          {fault && (
            <Notice tone="warn" title={`Line ${fault.line} cannot be read`}>
              <p>{fault.message}</p>
            </Notice>
          )}
          {answer?.kind === "preview" && <Preview admission={answer.admission} />}
          {answer?.kind === "refused" && <Refused error={answer.error} text={text} />}
        </div>
      </div>
    </>
  );
}

function useSchemas() {
  return useQuery({
    queryKey: ["schemas"],
    queryFn: async ({ signal }) => (await readApi<{ components: { schemas: Schemas } }>("/openapi.json", { signal })).components.schemas,
    staleTime: Infinity,
  });
}

/** The job file of an earlier job, without the keys that it leaves at their defaults. */
function textOf(spec: Job["spec"], schemas: Schemas | undefined): string {
  return stringify(schemas ? saidIn(schemas, spec) : spec);
}

/** What to begin with: a recipe, or the job file of one of the newest jobs. */
function Templates({ schemas, onChoose }: { schemas: Schemas | undefined; onChoose: (text: string) => void }) {
  const { data: newest = [] } = useQuery({
    queryKey: ["jobs", "to begin with"],
    queryFn: async ({ signal }) => (await readJobs({ limit: NEWEST }, signal)).items,
  });
  const choose = (name: string): void => {
    const earlier = newest.find((one) => one.id === name);
    if (earlier) onChoose(textOf(earlier.spec, schemas));
    else void TEMPLATES.get(name)?.().then(onChoose);
  };
  return (
    <select aria-label="Begin with a recipe or an earlier job" value="" onChange={(event) => choose(event.target.value)}>
      <option value="">Begin with…</option>
      <optgroup label="Recipes">
        {[...TEMPLATES.keys()].map((name) => (
          <option key={name}>{name}</option>
        ))}
      </optgroup>
      {newest.length > 0 && (
        <optgroup label="Newest jobs">
          {newest.map((one) => (
            <option key={one.id} value={one.id}>
              {one.name}, {full(one.created_at)}
            </option>
          ))}
        </optgroup>
      )}
    </select>
  );
}

function Refused({ error, text }: { error: ApiError; text: string }) {
  const { findings } = error;
  const title =
    findings.length > 0
      ? findings.length === 1
        ? "One key is wrong"
        : `${findings.length} keys are wrong`
      : error.message;
  return (
    <Notice tone="bad" title={title}>
      {findings.length > 0 && (
        <ul className="findings" data-testid="findings">
          {findings.map((one, at) => (
            <li key={at} data-pointer={one.pointer}>
              <code>{one.pointer || "/"}</code>
              {lineOf(text, one.pointer) !== null && (
                <span className="muted"> line {lineOf(text, one.pointer)}</span>
              )}
              <p>{one.message || one.allowed}</p>
            </li>
          ))}
        </ul>
      )}
      {error.hint && <p>{error.hint}</p>}
    </Notice>
  );
}

function marksOf(
  text: string,
  answer: Answer | null,
  fault: { line: number; message: string } | null,
): Marked[] {
  if (fault) return [fault];
  if (answer?.kind !== "refused") return [];
  return answer.error.findings.flatMap((one) => {
    const line = lineOf(text, one.pointer);
    return line === null ? [] : [{ line, message: one.message }];
  });
}
