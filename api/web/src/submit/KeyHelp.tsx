/** What the schema knows about the line of the cursor: its key, and the values or keys that can stand there, to choose. */
import { completed, keysAt, partAt, placeOf, siblings, told, valuesAt, type Schemas } from "./schema";

interface Props {
  schemas: Schemas;
  lines: readonly string[];
  at: number;
  /** Takes the line as it is with what was chosen. */
  onChoose: (line: string) => void;
}

export function KeyHelp({ schemas, lines, at, onChoose }: Props) {
  const { path, key } = placeOf(lines, at);
  const line = lines[at] ?? "";
  const part = key === null ? null : partAt(schemas, [...path, key]);
  const values = key === null ? [] : valuesAt(schemas, [...path, key]);
  const begun = key === null ? line.trim() : "";
  const there = siblings(lines, at);
  const keys = part !== null ? [] : keysAt(schemas, path).filter((one) => one.key.startsWith(begun) && !there.has(one.key));
  return (
    <div className="key-help pad" data-testid="key-help">
      {part !== null && key !== null && (
        <p role="status">
          <b>{[...path, key].join(".")}</b> <span>{told(schemas, part)}</span>
        </p>
      )}
      {part === null && keys.length === 0 && <p className="muted">Each line is explained here, with what can stand in it.</p>}
      <Choices name="Values" all={values} onChoose={(value) => onChoose(completed(line, value))} />
      <Choices
        name={path.length > 0 ? `Keys of ${path.join(".")}` : "Keys"}
        all={keys.map((one) => one.key)}
        onChoose={(chosen) => onChoose(completed(line, null, chosen))}
      />
    </div>
  );
}

function Choices({ name, all, onChoose }: { name: string; all: readonly string[]; onChoose: (one: string) => void }) {
  return all.length === 0 ? null : (
    <div className="choices" role="group" aria-label={name}>
      <span className="muted">{name}</span>
      {all.map((one) => (
        <button key={one} type="button" onClick={() => onChoose(one)}>
          {one}
        </button>
      ))}
    </div>
  );
}
