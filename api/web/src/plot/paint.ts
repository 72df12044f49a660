/** Parallel coordinates and scatter on a canvas: where things lie, and drawing them. */
import { number } from "../format";
import { logTicks, ticks } from "./axes";
import type { Look } from "./lines";
import { colourOf, DASHES, type Theme } from "./palette";

/** One axis: numbers, or words at 0, 1, …; null where a run has no value. */
export interface Dimension {
  label: string;
  /** Whether equal ratios are equally far apart; all values are above 0 then. */
  log: boolean;
  values: readonly (number | null)[];
  words: readonly string[] | null;
}

export interface Picture {
  width: number;
  height: number;
  looks: readonly Look[];
  highlight: number | null;
}

type Pen = CanvasRenderingContext2D;
type Place = readonly [number, number];

const [TOP, BOTTOM, SIDE] = [34, 18, 64];
const MARK_PX = 44;

/** The lowest and the highest value. */
export function bounds({ values }: Dimension): readonly [number, number] {
  const known = values.filter((value) => value !== null);
  return [Math.min(...known), Math.max(...known)];
}

/** For each run its points, one an axis; null where it has no value. */
export function parallelPlaces(dimensions: readonly Dimension[], { width, height, looks }: Picture): (Place | null)[][] {
  return looks.map((_, run) =>
    dimensions.map((one, at): Place | null => {
      const value = one.values[run] ?? null;
      return value === null ? null : [axisAt(at, dimensions.length, width), share(one, value, height - BOTTOM, TOP)];
    }),
  );
}

export function scatterPlaces(x: Dimension, y: Dimension, { width, height, looks }: Picture): (Place | null)[] {
  return looks.map((_, run): Place | null => {
    const [across, up] = [x.values[run] ?? null, y.values[run] ?? null];
    return across === null || up === null ? null : [share(x, across, SIDE, width - 20), share(y, up, height - TOP - 8, 14)];
  });
}

export function paintParallel(pen: Pen, dimensions: readonly Dimension[], picture: Picture, theme: Theme): void {
  const { width, height, looks, highlight } = picture;
  const places = parallelPlaces(dimensions, picture);
  const order = [...looks.keys()].sort((a, b) => Number(a === highlight) - Number(b === highlight));
  for (const run of order) {
    const look = looks[run];
    if (look) stroke(pen, places[run] ?? [], look, highlight === null ? 0.75 : run === highlight ? 1 : 0.15, theme);
  }
  dimensions.forEach((one, at) => {
    const x = axisAt(at, dimensions.length, width);
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1;
    pen.strokeRect(x, TOP, 0, height - TOP - BOTTOM);
    const align = at === 0 ? "left" : at === dimensions.length - 1 ? "right" : "center";
    write(pen, fitted(pen, one.label, width / dimensions.length), at === 0 ? x - 56 : at === dimensions.length - 1 ? x + 56 : x, 14, align, theme.ink);
    for (const [value, word] of marks(one, height - TOP - BOTTOM)) {
      const last = at === dimensions.length - 1;
      write(pen, fitted(pen, word, 58), last ? x + 5 : x - 5, share(one, value, height - BOTTOM, TOP) + 4, last ? "left" : "right", theme.muted, theme.surface);
    }
  });
}

export function paintScatter(pen: Pen, x: Dimension, y: Dimension, picture: Picture, theme: Theme): void {
  const { width, height, looks, highlight } = picture;
  pen.strokeStyle = theme.line;
  pen.lineWidth = 1;
  for (const [value, word] of marks(y, height - TOP)) {
    const at = share(y, value, height - TOP - 8, 14);
    pen.strokeRect(SIDE - 8, at, width - SIDE - 4, 0);
    write(pen, fitted(pen, word, SIDE - 12), SIDE - 12, at + 4, "right", theme.muted);
  }
  for (const [value, word] of marks(x, (width - SIDE) / 2)) {
    write(pen, fitted(pen, word, 80), share(x, value, SIDE, width - 20), height - 18, "center", theme.muted);
  }
  write(pen, fitted(pen, x.label, width - SIDE), width - 14, height - 3, "right", theme.ink);
  scatterPlaces(x, y, picture).forEach((place, run) => {
    const look = looks[run];
    if (!place || !look) return;
    pen.globalAlpha = highlight === null || run === highlight ? 0.9 : 0.2;
    pen.fillStyle = pen.strokeStyle = colourOf(theme, look);
    pen.beginPath();
    pen.arc(place[0], place[1], run === highlight ? 7 : 5, 0, 2 * Math.PI);
    // Open circles are what dashes are for lines: a second way to tell colours apart.
    if (look.dash === 0) pen.fill();
    pen.lineWidth = 1 + look.dash;
    pen.stroke();
  });
  pen.globalAlpha = 1;
}

/** The run whose point, or whose line, is nearest to a pixel; null where none is near. */
export function nearestPlace(places: readonly (readonly (Place | null)[])[], x: number, y: number): number | null {
  let [best, away] = [-1, 18];
  places.forEach((points, run) =>
    points.forEach((point, at) => {
      const next = points[at + 1];
      const far = point === null ? Infinity : next ? toSegment(point, next, x, y) : Math.hypot(point[0] - x, point[1] - y);
      if (far < away) [best, away] = [run, far];
    }),
  );
  return best < 0 ? null : best;
}

function toSegment([ax, ay]: Place, [bx, by]: Place, x: number, y: number): number {
  const along = Math.min(1, Math.max(0, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2 || 1)));
  return Math.hypot(ax + along * (bx - ax) - x, ay + along * (by - ay) - y);
}

function axisAt(at: number, all: number, width: number): number {
  return SIDE + (at / Math.max(1, all - 1)) * (width - 2 * SIDE);
}

function share(one: Dimension, value: number, from: number, to: number): number {
  const [low, high, at] = [...bounds(one), value].map((each) => (one.log ? Math.log(each) : each)) as [number, number, number];
  return from + ((at - low) / (high - low || 1)) * (to - from);
}

function marks(one: Dimension, room: number): [number, string][] {
  const most = Math.max(2, Math.floor(room / MARK_PX));
  if (one.words) {
    const every = Math.ceil(one.words.length / most);
    return one.words.map((word, at): [number, string] => [at, word]).filter(([at]) => at % every === 0);
  }
  return (one.log ? logTicks : ticks)(...bounds(one), most).map((value) => [value, number(value)]);
}

function stroke(pen: Pen, places: readonly (Place | null)[], look: Look, alpha: number, theme: Theme): void {
  pen.globalAlpha = alpha;
  pen.strokeStyle = colourOf(theme, look);
  pen.lineWidth = 1.5;
  pen.setLineDash([...(DASHES[look.dash] ?? [])]);
  pen.beginPath();
  let down = false;
  for (const place of places) {
    if (place !== null && down) pen.lineTo(...place);
    else if (place !== null) pen.moveTo(...place);
    down = place !== null;
  }
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

function write(pen: Pen, text: string, x: number, y: number, align: CanvasTextAlign, colour: string, ground?: string): void {
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = align;
  if (ground) {
    pen.strokeStyle = ground;
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeText(text, x, y);
  }
  pen.fillStyle = colour;
  pen.fillText(text, x, y);
}

/** A text cut to a width: names of keys may be long. */
function fitted(pen: Pen, text: string, width: number): string {
  pen.font = "11px system-ui, sans-serif";
  let cut = text;
  while (cut.length > 3 && pen.measureText(cut).width > width) cut = `${cut.slice(0, -2)}…`;
  return cut;
}
