/** A text area that grows with its lines, with line numbers and marked lines beside it. */
import type { KeyboardEvent, RefObject } from "react";

export interface Marked {
  line: number;
  message: string;
}

interface Props {
  text: string;
  onChange: (text: string) => void;
  /** Tells the line of the cursor, from 0. */
  onLine: (line: number) => void;
  marks: readonly Marked[];
  area: RefObject<HTMLTextAreaElement | null>;
}

const MIN_LINES = 14;

export function Editor({ text, onChange, onLine, marks, area }: Props) {
  const lines = text.split("\n").length;
  const marked = new Map(marks.map((mark) => [mark.line, mark.message]));
  const indent = (event: KeyboardEvent<HTMLTextAreaElement>): void => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    const { selectionStart: at, selectionEnd: end } = event.currentTarget;
    const before = text.slice(text.lastIndexOf("\n", at - 1) + 1, at);
    const margin = /^ */.exec(before)?.[0] ?? "";
    if (margin === "") return;
    event.preventDefault();
    typed(event.currentTarget, `\n${margin}`, at, end);
  };
  return (
    <div className="editor">
      <ol className="gutter" aria-hidden="true">
        {Array.from({ length: Math.max(lines, MIN_LINES) }, (_, at) => (
          <li key={at} className={marked.has(at + 1) ? "gutter-bad" : undefined} title={marked.get(at + 1)}>
            {at + 1}
          </li>
        ))}
      </ol>
      <textarea
        ref={area}
        aria-label="Job file"
        name="jobfile"
        data-testid="jobfile"
        value={text}
        rows={Math.max(lines, MIN_LINES)}
        wrap="off"
        spellCheck={false}
        autoCapitalize="off"
        autoCorrect="off"
        aria-invalid={marks.length > 0}
        onKeyDown={indent}
        onSelect={({ currentTarget }) => onLine(lineOfCursor(currentTarget))}
        onChange={({ target }) => {
          onChange(target.value);
          onLine(lineOfCursor(target));
        }}
      />
    </div>
  );
}

/** Put the text in the place of a stretch of what an area has, as if it were typed: the browser can undo it. */
export function typed(area: HTMLTextAreaElement, text: string, from: number, to: number): void {
  area.focus();
  area.setSelectionRange(from, to);
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- nothing else leaves what a text area undoes as it is
  if (document.execCommand("insertText", false, text)) return;
  area.setRangeText(text, from, to, "end");
  area.dispatchEvent(new InputEvent("input", { bubbles: true }));
}

function lineOfCursor({ value, selectionStart }: HTMLTextAreaElement): number {
  return value.slice(0, selectionStart).split("\n").length - 1;
}
