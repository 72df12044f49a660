/** Copying to the clipboard, and for a moment whether it went. */
import { useEffect, useState } from "react";

export type Copied = "not" | "done" | "refused";

const SAID_MS = 2500;

export function useCopied(): [Copied, (text: string) => void] {
  const [copied, setCopied] = useState<Copied>("not");
  useEffect(() => {
    if (copied === "not") return;
    const timer = setTimeout(() => setCopied("not"), SAID_MS);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = (text: string): void =>
    void copyText(text).then(
      () => setCopied("done"),
      () => setCopied("refused"),
    );
  return [copied, copy];
}

/** Fails where the browser does not let the page write: it gives the clipboard to https and localhost only. */
async function copyText(text: string): Promise<void> {
  const { clipboard } = navigator as { clipboard?: Clipboard };
  if (clipboard === undefined) throw new Error("This browser keeps the clipboard from this page.");
  await clipboard.writeText(text);
}
