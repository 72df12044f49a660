/** A line plot on a canvas, by uPlot: many curves, each with an x of its own; cursor, zoom, marks and strips. No React. */
import uPlot from "uplot";
import { axesOf, sidesOf, type XKind } from "./axes";
import { drawable, indexFrom, type Line, type Range } from "./lines";
import { drawMarks, type Mark } from "./marks";
import { colourOf, DASHES, type Theme } from "./palette";

/** A run's world size as a faint strip: `sizes[i]` holds from `xs[i]` on; recoveries at their own x. */
export interface Strip {
  id: string;
  xs: Float64Array;
  sizes: Float64Array;
  recoveries: readonly number[];
}

/** Where the cursor is: its x, its pixels below the plot's upper edge, and from the host's left. */
export interface Spot {
  x: number;
  top: number;
  left: number;
}

export interface PlotSpec {
  lines: readonly Line[];
  /** The lines before smoothing, faint behind; none without smoothing. */
  raw: readonly Line[];
  strips: readonly Strip[];
  marks: readonly Mark[];
  kind: XKind;
  log: boolean;
  /** y counts whole things. */
  whole: boolean;
  x: Range;
  y: Range;
  width: number;
  height: number;
  theme: Theme;
  onCursor: (spot: Spot | null) => void;
  onZoom: (range: Range | null) => void;
}

export interface Drawn {
  /** Where a value lies, in pixels below the plot's upper edge. */
  pixel: (value: number) => number;
  /** Put the cursor there; null: nowhere. */
  moveTo: (to: { x: number; top: number } | null) => void;
  /** The same for a cursor that is another plot's: nobody is told. */
  follow: (x: number | null) => void;
  /** Draw this run over the others, with a dot at the index `at`; without one the others fade. */
  highlight: (id: string | null, at: number | null) => void;
  destroy: () => void;
}

export const STRIP_PX = 4;
const DRAG_PX = 8;
const NOWHERE = { left: -10, top: -10 };
/** Plots whose cursor follows that of another one. */
const follows = new WeakSet<uPlot>();

export function draw(host: HTMLElement, spec: PlotSpec): Drawn {
  const { theme, lines } = spec;
  const plot = new uPlot(options(spec), columns(spec), host);
  const overlay = document.createElement("canvas");
  overlay.className = "plot-overlay";
  const dot = document.createElement("i");
  dot.className = "plot-dot";
  dot.hidden = true;
  plot.over.append(overlay, dot);
  const ratio = uPlot.pxRatio;
  overlay.width = plot.bbox.width;
  overlay.height = plot.bbox.height;
  const pixel = (value: number): number => (drawable(value, spec.log) ? plot.valToPos(value, "y") : NaN);
  let bright: string | null = null;
  const across = (x: number): number => plot.valToPos(x, "x");
  const highlight = (id: string | null, at: number | null): void => {
    const line = lines.find((one) => one.id === id);
    const y = line && at !== null ? pixel(line.ys[at] ?? NaN) : NaN;
    dot.hidden = !Number.isFinite(y);
    if (line && at !== null && !dot.hidden) {
      dot.style.transform = `translate(${plot.valToPos(line.xs[at] ?? 0, "x")}px, ${y}px)`;
      dot.style.borderColor = colourOf(theme, line.look);
    }
    host.classList.toggle("plot-dimmed", line !== undefined && at === null && lines.length > 1);
    const pen = overlay.getContext("2d");
    if (pen === null || bright === id) return;
    bright = id;
    pen.clearRect(0, 0, overlay.width, overlay.height);
    // The only line needs no other one over it.
    if (line === undefined || lines.length === 1) return;
    pen.strokeStyle = colourOf(theme, line.look);
    pen.lineWidth = 2.6 * ratio;
    pen.lineJoin = "round";
    pen.setLineDash((DASHES[line.look.dash] ?? []).map((part) => part * ratio));
    pen.stroke(trace(line, spec, 0, 0, overlay.width, overlay.height));
  };
  return {
    pixel,
    moveTo: (to) => {
      follows.delete(plot);
      plot.setCursor(to ? { left: across(to.x), top: to.top } : NOWHERE);
    },
    follow: (x) => {
      follows.add(plot);
      plot.setCursor(x === null ? NOWHERE : { left: across(x), top: spec.height / 2 }, false);
    },
    highlight,
    destroy: () => plot.destroy(),
  };
}

function options(spec: PlotSpec): uPlot.Options {
  const { raw, lines, theme, onZoom } = spec;
  return {
    // Every curve has an x of its own: runs share no times, and need share no steps.
    // eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment -- a const enum: isolated modules cannot name it
    mode: 2,
    width: spec.width,
    height: spec.height,
    padding: [10, sidesOf(spec.width).right, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: spec.kind.unit === "time", range: () => [...spec.x] as [number, number] },
      // eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment -- a const enum: isolated modules cannot name it
      y: { distr: spec.log ? 3 : 1, range: () => [...spec.y] as [number, number] },
    },
    axes: axesOf(spec.kind, spec, theme, spec.width),
    series: [null, ...raw.map((line) => series(line, spec, true)), ...lines.map((line) => series(line, spec, false))] as never,
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: DRAG_PX },
      bind: { dblclick: () => () => (onZoom(null), null) },
    },
    hooks: {
      drawClear: [
        (plot) => drawMarks(plot.ctx, plot.bbox, spec.x, spec.marks, theme, uPlot.pxRatio),
        (plot) => drawStrips(plot, spec),
      ],
      setCursor: [
        (plot) => {
          // uPlot tells of the cursor by itself, too, where it draws anew.
          if (plot.cursor.event) follows.delete(plot);
          if (!follows.has(plot)) spec.onCursor(spotOf(plot));
        },
      ],
      setSelect: [(plot) => selected(plot, onZoom)],
    },
  };
}

function columns({ raw, lines }: PlotSpec): uPlot.AlignedData {
  // uPlot's own types know this form of data only as numbers or null.
  return [null, ...[...raw, ...lines].map(({ xs, ys }) => [xs, ys])] as unknown as uPlot.AlignedData;
}

function series(line: Line, spec: PlotSpec, faint: boolean): uPlot.Series {
  return {
    stroke: colourOf(spec.theme, line.look),
    width: faint ? 1 : 1.5,
    alpha: faint ? 0.28 : 1,
    dash: faint ? [] : [...(DASHES[line.look.dash] ?? [])],
    points: { show: false },
    facets: [
      { scale: "x", auto: true },
      { scale: "y", auto: true },
    ],
    paths: (plot: uPlot) => ({
      stroke: trace(line, spec, plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height),
      fill: null,
      clip: null,
      band: null,
      gaps: null,
      flags: 0,
    }),
  } as unknown as uPlot.Series;
}

/** The path of a line in a rectangle; it breaks at what cannot be drawn. It has a point on either side, to run to the edge. */
function trace({ xs, ys, holds }: Line, { x, y, log }: PlotSpec, left: number, top: number, width: number, height: number): Path2D {
  const path = new Path2D();
  const scaled = log ? Math.log10 : (value: number): number => value;
  const low = scaled(y[0]);
  const [across, up] = [width / (x[1] - x[0]), height / (scaled(y[1]) - low)];
  const last = Math.min(xs.length, indexFrom(xs, x[1]) + 1);
  let [pen, alone, px, py] = [false, false, 0, 0];
  for (let at = Math.max(0, indexFrom(xs, x[0]) - 1); at <= last; at++) {
    const value = at < last ? (ys[at] ?? NaN) : NaN;
    if (drawable(value, log)) {
      const before = py;
      [px, py] = [left + ((xs[at] ?? 0) - x[0]) * across, top + height - (scaled(value) - low) * up];
      if (pen && holds) path.lineTo(px, before);
      if (pen) path.lineTo(px, py);
      else path.moveTo(px, py);
      [pen, alone] = [true, !pen];
    } else {
      // A single point between gaps: a short stroke, or nothing would be seen of it.
      if (pen && alone) path.lineTo(px + 2, py);
      [pen, alone] = [false, false];
    }
  }
  return path;
}

function drawStrips(plot: uPlot, { strips, lines, theme, x }: PlotSpec): void {
  const pen = plot.ctx;
  const ratio = uPlot.pxRatio;
  const { left, top, width, height } = plot.bbox;
  const most = strips.reduce((size, one) => one.sizes.reduce((high, each) => Math.max(high, each), size), 1);
  pen.save();
  strips.forEach((strip, row) => {
    const y = top + height - (strips.length - row) * STRIP_PX * ratio;
    const look = lines.find((line) => line.id === strip.id)?.look;
    pen.fillStyle = look ? colourOf(theme, look) : theme.muted;
    const at = (value: number): number =>
      Math.min(left + width, Math.max(left, plot.valToPos(Math.min(x[1], Math.max(x[0], value)), "x", true)));
    strip.xs.forEach((from, index) => {
      const until = strip.xs[index + 1] ?? from;
      pen.globalAlpha = 0.08 + 0.34 * ((strip.sizes[index] ?? 0) / most);
      pen.fillRect(at(from), y, at(until) - at(from), (STRIP_PX - 1) * ratio);
    });
    pen.globalAlpha = 0.9;
    pen.fillStyle = theme.recovery;
    for (const one of strip.recoveries) {
      if (one >= x[0] && one <= x[1]) pen.fillRect(at(one) - ratio, y - ratio, 2 * ratio, (STRIP_PX + 1) * ratio);
    }
  });
  pen.restore();
}

function spotOf(plot: uPlot): Spot | null {
  const { left, top } = plot.cursor;
  if (left === undefined || top === undefined || left < 0 || top < 0) return null;
  return { x: plot.posToVal(left, "x"), top, left: left + plot.over.offsetLeft };
}

function selected(plot: uPlot, onZoom: (range: Range) => void): void {
  const { left, width } = plot.select;
  if (width < DRAG_PX) return;
  const range: Range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  onZoom(range);
}
