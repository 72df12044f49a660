/** A long value, shortened, with a button that copies all of it. */
import { useEffect, useState } from "react";

export function Copy({ value, shown = value, label }: { value: string; shown?: string; label: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = (): void =>
    void write(value).then(
      () => setCopied(true),
      () => undefined,
    );
  return (
    <button type="button" className="copy" onClick={copy} title={value}>
      <code>{shown}</code>
      <span className="hidden">{label}</span>
      <span aria-live="polite">{copied ? "copied" : "copy"}</span>
    </button>
  );
}

/** The clipboard exists on secure origins only; elsewhere the reader selects the text. */
async function write(value: string): Promise<void> {
  const { clipboard } = navigator as { clipboard?: Clipboard };
  await clipboard?.writeText(value);
}
