/** A button that copies the address of what is shown: runs, charts, stretch, all that one chose. */
import { useCopied } from "./useCopied";

const WORDS = { not: "Copy link", done: "Link copied", refused: "Copy the address bar" };

export function CopyLink() {
  const [copied, copy] = useCopied();
  return (
    <button type="button" onClick={() => copy(window.location.href)}>
      <span aria-live="polite">{WORDS[copied]}</span>
    </button>
  );
}
