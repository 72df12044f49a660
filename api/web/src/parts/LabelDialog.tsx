/** Asks which labels jobs get, and which they lose. */
import { useMemo, useState, type ReactNode, type SubmitEvent } from "react";
import { labelIn, labelsOf, type LabelChange } from "../labels";
import type { Job } from "../wire";
import { Dialog } from "./Dialog";

interface Props {
  title: string;
  jobs: readonly Job[];
  pending?: boolean;
  /** What the API refused. */
  refused?: ReactNode;
  onClose: () => void;
  onYes: (change: LabelChange) => void;
}

export function LabelDialog({ title, jobs, pending = false, refused, onClose, onYes }: Props) {
  const [change, setChange] = useState<LabelChange>({});
  const [text, setText] = useState("");
  const known = useMemo(() => labelsOf(jobs), [jobs]);
  const typed = text.trim() === "" ? null : labelIn(text);
  const wrong = typeof typed === "string" ? typed : null;
  const whole = typed === null || typeof typed === "string" ? change : { ...change, [typed.key]: typed.value };
  const without = (key: string): LabelChange => Object.fromEntries(Object.entries(change).filter(([one]) => one !== key));
  const send = (event: SubmitEvent): void => {
    event.preventDefault();
    if (wrong === null && Object.keys(whole).length > 0) onYes(whole);
  };
  const added = Object.entries(change).filter((entry): entry is [string, string] => entry[1] !== null);
  return (
    <Dialog title={title} onClose={onClose}>
      {known.length > 0 && (
        <fieldset>
          <legend>Remove</legend>
          <div className="chips">
            {known.map(({ key, value, jobs: having }) => (
              <button
                key={`${key}=${value}`}
                type="button"
                className="chip"
                aria-pressed={change[key] === null}
                onClick={() => setChange(change[key] === null ? without(key) : { ...change, [key]: null })}
              >
                {key}={value}
                {having < jobs.length && <span className="muted"> {having}</span>}
              </button>
            ))}
          </div>
        </fieldset>
      )}
      <form onSubmit={send}>
        {added.length > 0 && (
          <div className="chips" role="group" aria-label="Labels to set">
            {added.map(([key, value]) => (
              <button key={key} type="button" className="chip" aria-label={`Do not set ${key}`} onClick={() => setChange(without(key))}>
                {key}={value} <span aria-hidden="true">×</span>
              </button>
            ))}
          </div>
        )}
        <div className="pair">
          <label>
            Set
            <input name="label" value={text} placeholder="team=vision" onChange={(event) => setText(event.target.value)} />
          </label>
          <button
            type="button"
            disabled={typed === null || wrong !== null}
            onClick={() => {
              setChange(whole);
              setText("");
            }}
          >
            Add another
          </button>
        </div>
        <p className="field-error" aria-live="polite">
          {wrong}
        </p>
        {refused}
        <div className="dialog-actions">
          <button type="button" onClick={onClose}>
            Leave unchanged
          </button>
          <button type="submit" className="primary" disabled={pending || wrong !== null || Object.keys(whole).length === 0}>
            Change labels
          </button>
        </div>
      </form>
    </Dialog>
  );
}
