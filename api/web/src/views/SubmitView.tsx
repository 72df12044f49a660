/** Submitting a job: a job file to edit, a few fields for the usual changes, errors at their lines, a preview. */
import { useEffect, useRef, useState } from "react";
import example from "../../../../jobs/ringleader_jobs/digits.yaml?raw";
import { ApiError, preview, submit } from "../api";
import { lineOf, needsUpload, read } from "../jobfile";
import { Card } from "../parts/Card";
import { Editor, type Marked } from "../parts/Editor";
import { Notice } from "../parts/Notice";
import { Preview } from "../parts/Preview";
import { SpecFields } from "../parts/SpecFields";
import { navigate } from "../router";
import type { Admission } from "../wire";

type Answer = { kind: "preview"; admission: Admission } | { kind: "refused"; error: ApiError };

export function SubmitView() {
  const [text, setText] = useState(example);
  const [busy, setBusy] = useState<"submit" | "preview" | null>(null);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const key = useRef({ text: "", key: "" });
  useEffect(() => {
    document.title = "Submit · Ringleader";
  }, []);
  const { spec, fault } = read(text);
  const edit = (next: string): void => {
    setText(next);
    setAnswer(null);
  };
  const ask = async (what: "submit" | "preview"): Promise<void> => {
    setBusy(what);
    setAnswer(null);
    try {
      if (what === "preview") {
        setAnswer({ kind: "preview", admission: await preview(spec) });
        return;
      }
      if (key.current.text !== text) key.current = { text, key: randomKey() };
      const job = await submit(spec, key.current.key);
      navigate(`/jobs/${job.id}`);
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
          <Card title="Job file" aside={<span className="muted">YAML or JSON</span>}>
            <Editor text={text} onChange={edit} marks={marksOf(text, answer, fault)} />
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

function randomKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}
