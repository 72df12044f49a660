/** The job file in the submit form: text ↔ values, and which line a JSON pointer means. */
import { isMap, isScalar, LineCounter, parseDocument, type Document } from "yaml";

export interface Fault {
  line: number;
  message: string;
}

export interface JobFile {
  spec: Record<string, unknown> | null;
  fault: Fault | null;
}

/** Read YAML or JSON (which is YAML). */
export function read(text: string): JobFile {
  const { document, lines } = parsed(text);
  const error = document.errors[0];
  if (error) {
    return {
      spec: null,
      fault: {
        line: lines.linePos(error.pos[0]).line,
        message: error.message.split("\n")[0]?.replace(/ at line \d+, column \d+:?$/, "") ?? "",
      },
    };
  }
  const value: unknown = document.toJS();
  if (!isMap(document.contents)) {
    return {
      spec: null,
      fault: { line: 1, message: "A job file must consist of keys with values, such as `name: digits`." },
    };
  }
  return { spec: value as Record<string, unknown>, fault: null };
}

/** The line (from 1) of the key that a JSON pointer names, or of the nearest key above it that is there. */
export function lineOf(text: string, pointer: string): number | null {
  const { document, lines } = parsed(text);
  const path = pointer
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  let node: unknown = document.contents;
  let line: number | null = null;
  for (const key of path) {
    if (!isMap(node)) break;
    const pair = node.items.find((item) => isScalar(item.key) && String(item.key.value) === key);
    if (pair === undefined) break;
    if (isScalar(pair.key) && pair.key.range) line = lines.linePos(pair.key.range[0]).line;
    node = pair.value;
  }
  return line;
}

/** The text with one value changed; comments and order stay. A text that cannot be read stays as it is. */
export function withValue(text: string, path: readonly string[], value: unknown): string {
  const { document } = parsed(text);
  if (document.errors.length > 0 || !isMap(document.contents)) return text;
  document.setIn(path, value);
  return document.toString({ lineWidth: 0, flowCollectionPadding: false });
}

/** A value inside the spec; undefined where a key on the way is missing. */
export function valueAt(spec: Record<string, unknown> | null, path: readonly string[]): unknown {
  return path.reduce<unknown>(
    (at, key) => (typeof at === "object" && at !== null ? (at as Record<string, unknown>)[key] : undefined),
    spec,
  );
}

/** A folder can be packed by the command line and the SDK only. */
export function needsUpload(spec: Record<string, unknown> | null): boolean {
  const folder = spec?.working_dir;
  return typeof folder === "string" && !folder.startsWith("sha256:");
}

function parsed(text: string): { document: Document; lines: LineCounter } {
  const lines = new LineCounter();
  return { document: parseDocument(text, { lineCounter: lines }), lines };
}
