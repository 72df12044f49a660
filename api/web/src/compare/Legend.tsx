/** All runs with their colours: the one pointed at, or chosen, stands out in every chart. */
import { Swatch } from "../plot/Swatch";
import type { Run } from "./runs";

interface Props {
  runs: readonly Run[];
  chosen: string | null;
  onChoose: (id: string | null) => void;
  onPoint: (id: string | null) => void;
}

export function Legend({ runs, chosen, onChoose, onPoint }: Props) {
  return (
    <ul className="run-legend" aria-label="Runs" tabIndex={0} onPointerLeave={() => onPoint(null)}>
      {runs.map((run) => (
        <li key={run.id}>
          <button
            type="button"
            className="chip"
            aria-pressed={run.id === chosen}
            onClick={() => onChoose(run.id === chosen ? null : run.id)}
            onPointerEnter={() => onPoint(run.id)}
            onFocus={() => onPoint(run.id)}
            onBlur={() => onPoint(null)}
          >
            <Swatch look={run.look} />
            <span className="clip">{run.label}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}
