/** What the reader should know: why a job waits or failed, errors, emptiness, loading. */
import type { ReactNode } from "react";
import type { ApiError } from "../api";
import { gist, sentence } from "../format";
import type { State, Why } from "../wire";
import { WithJobs } from "./WithJobs";

type Tone = "bad" | "warn" | "info";

interface NoticeProps {
  tone: Tone;
  title: string;
  testId?: string;
  children?: ReactNode;
}

export function Notice({ tone, title, testId, children }: NoticeProps) {
  return (
    <div className={`notice notice-${tone}`} role={tone === "bad" ? "alert" : "status"} data-testid={testId}>
      <b>{title}</b>
      {children}
    </div>
  );
}

/** What a shared link asks for and the page does not show. */
export function LeftOut({ notes }: { notes: readonly string[] }) {
  if (notes.length === 0) return null;
  return (
    <Notice tone="warn" title="Not everything in this link is shown" testId="left-out">
      {notes.map((note) => (
        <p key={note}>{note}</p>
      ))}
    </Notice>
  );
}

export function WhyNotice({ tone, title, why }: { tone: Tone; title: string; why: Why }) {
  return (
    <Notice tone={tone} title={title} testId="why">
      <code className="code-word" data-testid="why-code">
        {why.code}
      </code>
      <p>
        <WithJobs text={sentence(gist(why.message))} />
      </p>
      {why.message.includes("\n") && (
        <pre className="traceback" tabIndex={0} role="region" aria-label="Traceback">
          {why.message}
        </pre>
      )}
      {why.hint && (
        <p className="muted" data-testid="why-hint">
          {why.hint}
        </p>
      )}
    </Notice>
  );
}

/** What a state's reason explains. */
export function whyTitle(state: State): string {
  if (state === "failed") return "Why it failed";
  if (state === "paused") return "Why it is paused";
  return state === "stopping" ? "Why it is stopping" : "Why it ended";
}

export function ErrorNotice({ error, stale }: { error: ApiError; stale: boolean }) {
  const title = stale ? "The data shown may be out of date" : "This could not be loaded";
  return (
    <Notice tone={stale ? "warn" : "bad"} title={title}>
      <p>
        {sentence(error.message)} {error.hint}
      </p>
    </Notice>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <svg viewBox="0 0 48 48" width="48" height="48" aria-hidden="true">
        <circle cx="24" cy="24" r="17" className="empty-ring" />
        <circle cx="41" cy="24" r="5" className="empty-dot" />
      </svg>
      <b>{title}</b>
      {children}
    </div>
  );
}

/** Grey lines where content will be. */
export function Skeleton({ lines }: { lines: number }) {
  return (
    <div className="skeleton" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, line) => (
        <span key={line} />
      ))}
    </div>
  );
}
