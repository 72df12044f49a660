/** A long value, shortened, with a button that copies all of it. */
import { useCopied } from "./useCopied";

export function Copy({ value, shown = value, label }: { value: string; shown?: string; label: string }) {
  const [copied, copy] = useCopied();
  return (
    <button type="button" className="copy" onClick={() => copy(value)} title={value}>
      <code>{shown}</code>
      <span className="hidden">{label}</span>
      <span aria-live="polite">{WORDS[copied]}</span>
    </button>
  );
}

const WORDS = { not: "copy", done: "copied", refused: "select it" };
