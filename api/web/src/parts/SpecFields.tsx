/** Fields for what is changed most often; they read from the job file's text and write into it. */
import { valueAt, withValue } from "../jobfile";

const SYNCS = ["ring", "parameter_server", "local_sgd", "token_ring"] as const;

interface Props {
  text: string;
  spec: Record<string, unknown> | null;
  onChange: (text: string) => void;
}

export function SpecFields({ text, spec, onChange }: Props) {
  const set = (path: readonly string[], value: unknown): void => onChange(withValue(text, path, value));
  const shown = (path: readonly string[]): string => {
    const value = valueAt(spec, path);
    return typeof value === "string" || typeof value === "number" ? String(value) : "";
  };
  const field = (label: string, path: readonly string[], kind: "text" | "number", fallback: string) => (
    <label>
      {label}
      <input
        type={kind}
        name={path.join(".")}
        value={shown(path)}
        placeholder={fallback}
        disabled={spec === null}
        min={kind === "number" ? 1 : undefined}
        onChange={(event) => set(path, kind === "number" ? whole(event.target.value) : event.target.value)}
      />
    </label>
  );
  const sync = valueAt(spec, ["sync"]) ?? "ring";
  const known = SYNCS.find((one) => one === sync);
  return (
    <div className="fields">
      {field("Name", ["name"], "text", "")}
      {field("Project", ["project"], "text", "default")}
      <div className="field-row">
        {field("Min workers", ["workers", "min"], "number", "1")}
        {field("Max workers", ["workers", "max"], "number", "1")}
      </div>
      <div className="field-row">
        {field("Global batch", ["batch", "global_size"], "number", "64")}
        <label>
          Sync
          <select
            name="sync"
            value={known ?? ""}
            disabled={spec === null}
            onChange={(event) => set(["sync"], event.target.value)}
          >
            {known === undefined && <option value="">as in the file</option>}
            {SYNCS.map((one) => (
              <option key={one} value={one}>
                {one.replaceAll("_", " ")}
              </option>
            ))}
          </select>
        </label>
      </div>
    </div>
  );
}

/** A whole number where it is one; anything else goes to the API, which says what is wrong with it. */
function whole(text: string): number | string {
  return /^\d+$/.test(text) ? Number(text) : text;
}
