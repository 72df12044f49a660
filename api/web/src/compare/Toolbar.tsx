/** What holds for all charts: the x axis, the stretch, the strips, and which metrics are shown. */
import { ToggleChips } from "../parts/ToggleChips";
import { AxisPick } from "../plot/Controls";
import { useChange } from "./change";
import { MAX_NAMES, type CompareState } from "./state";

export function Toolbar({ state, names }: { state: CompareState; names: readonly string[] }) {
  const change = useChange();
  const all = [...new Set([...state.names, ...names])];
  const flip = (name: string): void => {
    const without = state.names.filter((one) => one !== name);
    if (without.length === state.names.length) change({ names: [...state.names, name] });
    else if (without.length > 0) change({ names: without });
  };
  return (
    <div className="compare-bar">
      <AxisPick axis={state.axis} onPick={(axis) => change({ axis, zoom: null })} />
      <label className="check">
        <input type="checkbox" checked={state.strips} onChange={(event) => change({ strips: event.target.checked })} />
        World size and recoveries
      </label>
      <ToggleChips label="Metrics" names={all} on={state.names} onFlip={flip} full={state.names.length >= MAX_NAMES} />
      {state.zoom && (
        <button type="button" className="small push" onClick={() => change({ zoom: null })}>
          Show all
        </button>
      )}
    </div>
  );
}
