/** A line plot with its cursor: by pointer and by keys, in words beside it and for screen readers. */
import "uplot/dist/uPlot.min.css";
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { number } from "../format";
import { xWords, type XKind } from "./axes";
import { draw, STRIP_PX, type Drawn, type Spot, type Strip } from "./draw";
import { keyed, nearestRuns, raised, xRange, yRange, type Line, type Near, type Range } from "./lines";
import type { Mark } from "./marks";
import { colourOf, DASHES, readTheme, useDark } from "./palette";
import type { Picture } from "./picture";
import { SaveButtons } from "./SaveButtons";
import { Swatch } from "./Swatch";
import { useWidth } from "./useWidth";
import type { Cell } from "./save";
import { wide, xHead } from "./wide";
import "../styles/plot.css";

const NAMED = 5;
const HEIGHT = 260;
const NO_RAW: readonly Line[] = [];
const NO_STRIPS: readonly Strip[] = [];
const NO_MARKS: readonly Mark[] = [];

interface Props {
  name: string;
  /** Whose chart it is, for the files that are made of it. */
  of?: string;
  /** What its lines are in, where they are several of one job. */
  things?: string;
  lines: readonly Line[];
  /** The lines before smoothing; none without smoothing. */
  raw?: readonly Line[];
  strips?: readonly Strip[];
  marks?: readonly Mark[];
  kind: XKind;
  log?: boolean;
  /** y reaches down to 0, and counts whole things. */
  zero?: boolean;
  whole?: boolean;
  height?: number;
  zoom: Range | null;
  highlight: string | null;
  onZoom: (range: Range | null) => void;
  /** What is saved as CSV in place of the lines. */
  rows?: () => Cell[][];
  /** Where the cursor of another plot is, and who wants to know where it is in this one. */
  at?: number | null;
  onAt?: (x: number | null) => void;
  /** What stands beside the cursor; without it the values of the lines. */
  tip?: (x: number, perPixel: number) => ReactNode;
  empty?: string;
}

interface Cursor {
  spot: Spot;
  near: readonly Near[];
}

export function LinePlot(given: Props) {
  const [pressed, setPressed] = usePressed();
  // A plot that is drawn anew forgets where a drag began.
  const props = useHeld(given, pressed);
  const { name, lines, raw = NO_RAW, strips = NO_STRIPS, marks = NO_MARKS, kind, log = false, zero = false, whole = false, height = HEIGHT } = props;
  const { zoom, highlight, onZoom, at = null, onAt, tip, empty = "No values here." } = props;
  const [box, width] = useWidth();
  const host = useRef<HTMLDivElement>(null);
  const drawn = useRef<Drawn | null>(null);
  const [cursor, setCursor] = useState<Cursor | null>(null);
  const last = useRef<Spot | null>(null);
  const others = useRef(at);
  const [placed, setPlaced] = useState({});
  const [said, setSaid] = useState("");
  const dark = useDark();
  const x = useMemo(() => zoom ?? xRange(lines), [zoom, lines]);
  const y = useMemo(() => {
    const found = x && yRange(raw.length > 0 ? raw : lines, x, log, zero);
    return found && raised(found, (strips.length * STRIP_PX) / height, log);
  }, [lines, raw, strips, x, log, zero, height]);
  const near = (to: { x: number; top: number }, most: number): Near[] =>
    drawn.current ? nearestRuns(lines, to.x, to.top, drawn.current.pixel, most) : [];

  useEffect(() => {
    if (host.current === null || width === 0 || x === null || y === null) return;
    const theme = readTheme();
    const onCursor = (spot: Spot | null): void => {
      const pixel = drawn.current?.pixel;
      last.current = spot;
      setCursor(spot && pixel ? { spot, near: nearestRuns(lines, spot.x, spot.top, pixel, NAMED) } : null);
      onAt?.(spot?.x ?? null);
    };
    const spec = { lines, raw, strips, marks, kind, log, whole, x, y, width, height, theme, onCursor, onZoom };
    const was = last.current;
    const mine = (drawn.current = draw(host.current, spec));
    host.current.dataset.drawn = String(lines.length);
    // Behind uPlot's own first drawing, before which it knows no places: the cursor stays where it was.
    queueMicrotask(() => {
      if (drawn.current !== mine) return;
      if (was) mine.moveTo(was);
      else if (others.current !== null) setPlaced({});
    });
    return () => {
      drawn.current?.destroy();
      drawn.current = null;
    };
    // `dark`: the theme is read from the page.
  }, [lines, raw, strips, marks, kind, log, whole, x, y, width, height, dark, onZoom, onAt]);

  useEffect(() => {
    const plot = drawn.current;
    others.current = at;
    if (plot === null) return;
    if (cursor === null) plot.follow(at);
    const first = cursor ? cursor.near[0] : at === null ? undefined : nearestRuns(lines, at, 0, plot.pixel, 1)[0];
    plot.highlight(highlight ?? first?.line.id ?? null, first?.at ?? null);
  }, [cursor, at, placed, highlight, lines, raw, strips, marks, kind, log, whole, x, y, width, height, dark]);

  const press = (event: KeyboardEvent): void => {
    if (event.key === "Escape") drawn.current?.moveTo(null);
    if (event.key === "0") onZoom(null);
    if (event.key === "+" && cursor && x) onZoom(half(cursor.spot.x, x));
    if (!ARROWS.has(event.key) || x === null || drawn.current === null) return;
    event.preventDefault();
    const now = cursor?.spot ?? { x: (x[0] + x[1]) / 2, top: height / 2 };
    const to = keyed(event.key, near(now, Infinity), x, drawn.current.pixel) ?? now;
    drawn.current.moveTo(to);
    setSaid(words(kind, to.x, near(to, 3)));
  };
  const runs = lines.length === 1 ? "" : ` of ${lines.length} ${given.things === undefined ? "runs" : "lines"}`;
  return (
    <>
      <div className="plot" ref={box} style={{ minHeight: height }} onPointerDown={setPressed}>
        {x !== null && y !== null ? (
          <div
            ref={host}
            className="plot-host"
            role="application"
            aria-roledescription="chart"
            aria-label={`${name}${runs}. Arrow keys move the cursor, plus zooms in there, 0 shows all.`}
            tabIndex={0}
            data-testid="plot"
            data-name={name}
            data-lines={lines.length}
            data-points={lines.reduce((all, line) => all + line.xs.length, 0)}
            data-first={lines[0]?.xs[0]}
            data-last={lines[0]?.xs.at(-1)}
            data-x-min={x[0]}
            data-x-max={x[1]}
            onKeyDown={press}
            onBlur={() => drawn.current?.moveTo(null)}
          />
        ) : (
          <p className="plot-empty muted">{log && x ? "No value above 0: a logarithmic scale shows none." : empty}</p>
        )}
        {cursor && x && (tip !== undefined || cursor.near.length > 0) && (
          <div
            className="tooltip"
            style={cursor.spot.left < width / 2 ? { left: cursor.spot.left + 14 } : { right: width - cursor.spot.left + 14 }}
            data-testid="plot-values"
            aria-hidden="true"
          >
            {tip ? tip(cursor.spot.x, (x[1] - x[0]) / width) : <Values cursor={cursor} kind={kind} />}
          </div>
        )}
      </div>
      <p className="hidden" aria-live="polite">
        {said}
      </p>
      <SaveButtons
        name={name}
        picture={() => pictureOf(props)}
        rows={props.rows ?? (() => rowsOf(props))}
        canvas={() => host.current?.querySelector("canvas") ?? null}
      />
    </>
  );
}

/** The values as they were read: smoothing is a way of drawing. A job's own charts are headed by the metric's name. */
function rowsOf({ of, raw = NO_RAW, lines, kind, zoom }: Props): Cell[][] {
  const read = raw.length > 0 ? raw : lines;
  return wide(of ? read.map((line) => ({ ...line, label: line.id })) : read, xHead(kind), zoom);
}

function pictureOf({ name, of, things, lines, kind }: Props): Picture {
  const theme = readTheme();
  // Of one line the title says all.
  const keys = lines.map((line) => ({ label: line.label, colour: colourOf(theme, line.look), dash: DASHES[line.look.dash] ?? [] }));
  return { title: [of, name, things].filter(Boolean).join(" · "), x: kind.label, keys: of && things === undefined ? [] : keys };
}

/** Whether the pointer has been pressed here and is still down, and saying that it is pressed. */
function usePressed(): [boolean, () => void] {
  const [pressed, setPressed] = useState(false);
  useEffect(() => {
    if (!pressed) return;
    const release = (): void => setPressed(false);
    const ends = ["pointerup", "pointercancel", "blur"] as const;
    for (const end of ends) window.addEventListener(end, release);
    return () => {
      for (const end of ends) window.removeEventListener(end, release);
    };
  }, [pressed]);
  return [pressed, () => setPressed(true)];
}

/** The newest value; while it is held, the one from before. */
function useHeld<T>(value: T, held: boolean): T {
  const [kept, setKept] = useState(value);
  if (!held && kept !== value) setKept(value);
  return held ? kept : value;
}

const ARROWS: ReadonlySet<string> = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);

function Values({ cursor: { spot, near }, kind }: { cursor: Cursor; kind: XKind }) {
  return (
    <>
      <div className="tooltip-head">{xWords(kind, near[0]?.line.xs[near[0].at] ?? spot.x)}</div>
      <dl className="tooltip-values">
        {near.map(({ line, at }) => (
          <div key={line.id}>
            <dt>
              <Swatch look={line.look} />
              <span className="clip">{line.label}</span>
            </dt>
            <dd>{number(line.ys[at])}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

function words(kind: XKind, x: number, near: readonly Near[]): string {
  return `${xWords(kind, x)}: ${near.map(({ line, at }) => `${line.label} ${number(line.ys[at])}`).join(", ")}`;
}

function half(middle: number, [low, high]: Range): Range {
  const quarter = (high - low) / 4;
  return [Math.max(low, middle - quarter), Math.min(high, middle + quarter)];
}
