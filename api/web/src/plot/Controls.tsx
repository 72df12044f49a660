/** How charts are shown: by which axis; on which scale and how smooth each is. */
import { AXES, type AxisName } from "./curves";

const WORDS: Record<AxisName, string> = {
  step: "steps",
  rows: "rows (samples)",
  wall: "time of day",
  relative: "time since the start",
};

export function AxisPick({ axis, onPick }: { axis: AxisName; onPick: (axis: AxisName) => void }) {
  return (
    <label className="pick">
      x axis
      <select value={axis} onChange={(event) => onPick(event.target.value as AxisName)}>
        {AXES.map((one) => (
          <option key={one} value={one}>
            {WORDS[one]}
          </option>
        ))}
      </select>
    </label>
  );
}

interface Props {
  log: boolean;
  smoothing: number;
  onLog: (log: boolean) => void;
  onSmoothing: (weight: number) => void;
}

export function ScaleControls({ log, smoothing, onLog, onSmoothing }: Props) {
  return (
    <>
      <label className="check">
        <input type="checkbox" checked={log} onChange={(event) => onLog(event.target.checked)} />
        Log scale
      </label>
      <label className="check smoothing">
        Smoothing
        <input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          value={smoothing}
          onChange={(event) => onSmoothing(Number(event.target.value))}
        />
      </label>
    </>
  );
}
