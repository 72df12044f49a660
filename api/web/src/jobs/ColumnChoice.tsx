/** Which columns the job list has: what every job has, and the parameters, labels and metrics of some. */
import { useState } from "react";
import { flipped, KNOWN, STANDARD, drawnBy } from "./columns";
import { useFacets } from "./reading";

const OF_METRIC = [
  ["last", (name: string) => `metric:${name}:last`],
  ["min", (name: string) => `metric:${name}:min`],
  ["max", (name: string) => `metric:${name}:max`],
  ["curve", (name: string) => `curve:${name}`],
] as const;

interface Props {
  chosen: readonly string[];
  onChange: (ids: readonly string[]) => void;
}

export function ColumnChoice({ chosen, onChange }: Props) {
  const facets = useFacets(true);
  const [part, setPart] = useState("");
  const shown = (known: readonly string[], kinds: readonly string[]): string[] => {
    const own = chosen.map(drawnBy).flatMap((one) => (one && kinds.includes(one.kind) ? [one.name] : []));
    const all = [...new Set([...own, ...known])].sort();
    // An address separates columns by commas.
    return all.filter((name) => !name.includes(",") && name.toLowerCase().includes(part.toLowerCase()));
  };
  const metrics = shown(facets?.metrics ?? [], ["metric", "curve"]);
  const keys = [
    ["param", "Parameters", shown(facets?.params ?? [], ["param"])],
    ["label", "Labels", shown(Object.keys(facets?.labels ?? {}), ["label"])],
  ] as const;
  const tick = (id: string, label: string, words: string | null) => (
    <label key={id} className="check">
      <input
        type="checkbox"
        aria-label={words === null ? label : undefined}
        checked={chosen.includes(id)}
        disabled={id === "name"}
        onChange={() => onChange(flipped(chosen, id))}
      />
      {words}
    </label>
  );
  return (
    <div className="popup-parts">
      <fieldset>
        <legend>Of every job</legend>
        <div className="ticks">{KNOWN.map(({ id, title }) => tick(id, title, title))}</div>
      </fieldset>
      <label>
        Find a metric, parameter or label
        <input type="search" value={part} onChange={(event) => setPart(event.target.value)} />
      </label>
      {metrics.length > 0 && (
        <table className="metric-ticks">
          <thead>
            <tr>
              <th>Metric</th>
              {OF_METRIC.map(([what]) => (
                <th key={what}>{what}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {metrics.map((name) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {OF_METRIC.map(([what, id]) => (
                  <td key={what}>{tick(id(name), `${name} ${what}`, null)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {keys.map(
        ([kind, title, names]) =>
          names.length > 0 && (
            <fieldset key={kind}>
              <legend>{title}</legend>
              <div className="ticks">{names.map((name) => tick(`${kind}:${name}`, name, name))}</div>
            </fieldset>
          ),
      )}
      <button type="button" onClick={() => onChange(STANDARD)}>
        Standard columns
      </button>
    </div>
  );
}
