/** What the schema knows about the line of the cursor: its key, its values, or the keys that can stand there. */
import { keysAt, partAt, placeOf, told, valuesAt, type Schemas } from "./schema";

export function KeyHelp({ schemas, lines, at }: { schemas: Schemas; lines: readonly string[]; at: number }) {
  const { path, key } = placeOf(lines, at);
  const part = key === null ? null : partAt(schemas, [...path, key]);
  const values = key === null ? [] : valuesAt(schemas, [...path, key]);
  const keys = keysAt(schemas, path).map((one) => one.key);
  return (
    <div className="key-help pad" role="status" data-testid="key-help">
      {part !== null && (
        <p>
          <b>{[...path, key].join(".")}</b> <span>{told(schemas, part)}</span>
        </p>
      )}
      {values.length > 0 && <p className="muted">Values: {values.join(", ")}</p>}
      {part === null && keys.length > 0 && (
        <p className="muted">
          {path.length > 0 ? `Keys of ${path.join(".")}` : "Keys"}: {keys.join(", ")}
        </p>
      )}
    </div>
  );
}
