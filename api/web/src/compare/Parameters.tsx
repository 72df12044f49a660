/** What the runs differ in against how they ended: parallel coordinates, and one key against another. */
import { useCallback, useMemo, useState } from "react";
import { number } from "../format";
import { Card } from "../parts/Card";
import { nearestPlace, paintParallel, paintScatter, parallelPlaces, scatterPlaces, type Dimension, type Picture } from "../plot/paint";
import { Painted } from "../plot/Painted";
import { colourOf, DASHES, type Theme } from "../plot/palette";
import type { Key } from "../plot/picture";
import type { Cell } from "../plot/save";
import { useWidth } from "../plot/useWidth";
import { mostAxes } from "./dimensions";
import type { Run } from "./runs";

const HEIGHT = 280;
const WIDE = 1200; // until the width is known

export type Axes = readonly [x: string, y: string];

interface Props {
  runs: readonly Run[];
  dimensions: readonly Dimension[];
  /** The axes that were chosen; empty: none yet. */
  scatter: Axes;
  onScatter: (axes: Axes) => void;
  highlight: string | null;
}

export function Parameters({ runs, dimensions, scatter, onScatter, highlight }: Props) {
  const [pointed, setPointed] = useState<number | null>(null);
  const looks = useMemo(() => runs.map((run) => run.look), [runs]);
  const index = runs.findIndex((run) => run.id === highlight);
  const bright = pointed ?? (index < 0 ? null : index);
  return (
    <>
      <Parallel runs={runs} looks={looks} dimensions={dimensions} bright={bright} onPoint={setPointed} />
      <Scatter runs={runs} looks={looks} dimensions={dimensions} chosen={scatter} onChoose={onScatter} bright={bright} onPoint={setPointed} />
    </>
  );
}

interface PartProps {
  runs: readonly Run[];
  looks: Picture["looks"];
  dimensions: readonly Dimension[];
  bright: number | null;
  onPoint: (run: number | null) => void;
}

function Parallel({ runs, looks, dimensions, bright, onPoint }: PartProps) {
  // The metrics stand last, and stay when there are more axes than room.
  const [box, width] = useWidth(WIDE);
  const most = mostAxes(width);
  const shown = useMemo(() => dimensions.slice(-most), [dimensions, most]);
  const paint = useCallback(
    (pen: CanvasRenderingContext2D, width: number, height: number, theme: Theme) =>
      paintParallel(pen, shown, { width, height, looks, highlight: bright }, theme),
    [shown, looks, bright],
  );
  return (
    <Card title="Parallel coordinates" aside={<Pointed runs={runs} bright={bright} left={dimensions.length - shown.length} />}>
      <div ref={box}>
        <Painted
          name="Parallel coordinates"
          height={HEIGHT}
          paint={paint}
          rows={() => table(runs, dimensions)}
          keys={(theme) => keysOf(runs, theme)}
          onPoint={(at) =>
            onPoint(at && nearestPlace(parallelPlaces(shown, { width: at.width, height: HEIGHT, looks, highlight: null }), at.x, at.y))
          }
        />
      </div>
    </Card>
  );
}

interface ScatterProps extends PartProps {
  chosen: Axes;
  onChoose: (axes: Axes) => void;
}

function Scatter({ runs, looks, dimensions, chosen, onChoose, bright, onPoint }: ScatterProps) {
  const x = dimensions.find((one) => one.label === chosen[0]) ?? dimensions.findLast((one) => one.label.startsWith("params.")) ?? dimensions[0];
  const y = dimensions.find((one) => one.label === chosen[1]) ?? dimensions.at(-1);
  const paint = useCallback(
    (pen: CanvasRenderingContext2D, width: number, height: number, theme: Theme) => {
      if (x && y) paintScatter(pen, x, y, { width, height, looks, highlight: bright }, theme);
    },
    [x, y, looks, bright],
  );
  if (!x || !y) return null;
  const pick = (
    <>
      <Pointed runs={runs} bright={bright} left={0} />
      <Pick label="x" value={x.label} dimensions={dimensions} onPick={(label) => onChoose([label, y.label])} />
      <Pick label="y" value={y.label} dimensions={dimensions} onPick={(label) => onChoose([x.label, label])} />
    </>
  );
  return (
    <Card title="Scatter" aside={pick}>
      <Painted
        name="Scatter"
        height={HEIGHT}
        paint={paint}
        rows={() => table(runs, x === y ? [x] : [x, y])}
        keys={(theme) => keysOf(runs, theme)}
        onPoint={(at) => {
          const places = at && scatterPlaces(x, y, { width: at.width, height: HEIGHT, looks, highlight: null });
          onPoint(at && places && nearestPlace(places.map((place) => [place]), at.x, at.y));
        }}
      />
    </Card>
  );
}

function Pointed({ runs, bright, left }: { runs: readonly Run[]; bright: number | null; left: number }) {
  const run = bright === null ? undefined : runs[bright];
  if (run) return <b className="clip">{run.label}</b>;
  return left > 0 ? <span className="muted">{left === 1 ? "1 more axis is" : `${left} more axes are`} in the table</span> : null;
}

interface PickProps {
  label: string;
  value: string;
  dimensions: readonly Dimension[];
  onPick: (label: string) => void;
}

function Pick({ label, value, dimensions, onPick }: PickProps) {
  return (
    <label className="pick">
      {label}
      <select value={value} onChange={(event) => onPick(event.target.value)}>
        {dimensions.map((one) => (
          <option key={one.label}>{one.label}</option>
        ))}
      </select>
    </label>
  );
}

function table(runs: readonly Run[], dimensions: readonly Dimension[]): Cell[][] {
  const cell = ({ words, values }: Dimension, run: number): Cell => {
    const value = values[run] ?? null;
    return value === null ? "–" : (words?.[value] ?? number(value));
  };
  const rows = runs.map((run, at) => [run.label, ...dimensions.map((one) => cell(one, at))]);
  return [["Run", ...dimensions.map((one) => one.label)], ...rows];
}

function keysOf(runs: readonly Run[], theme: Theme): Key[] {
  return runs.map(({ label, look }) => ({ label, colour: colourOf(theme, look), dash: DASHES[look.dash] ?? [] }));
}
