/** What happened, on the charts' own x axis: generations, recoveries and lost workers. */
import { duration } from "../format";
import type { Boundary, Lost, Recovery } from "../history";
import type { Layout } from "./layout";

interface Props {
  layout: Layout;
  attempt: number;
  generations: readonly Boundary[];
  recoveries: readonly Recovery[];
  lost: readonly Lost[];
}

const SPAN_MIN = 9;
const LABEL_ROOM = 26;

export function Marks({ layout, attempt, generations, recoveries, lost }: Props) {
  const inside = (step: number): boolean => step >= layout.x.domain[0] && step <= layout.x.domain[1];
  const age = (one: { attempt: number }): string => (one.attempt < attempt ? "mark-before" : "");
  const formed = generations.filter((one) => inside(one.step));
  return (
    <g className="marks">
      {recoveries
        .filter((one) => inside(one.step) || inside(one.until))
        .map((one) => (
          <Span key={one.seq} recovery={one} layout={layout} className={age(one)} />
        ))}
      {formed.map((one, at) => (
        <GenerationLine
          key={`${one.attempt}.${one.generation}`}
          boundary={one}
          layout={layout}
          className={age(one)}
          labelled={hasRoom(formed, at, layout)}
        />
      ))}
      {lost
        .filter((one) => inside(one.step))
        .map((one) => (
          <LostMarker key={one.seq} lost={one} layout={layout} className={age(one)} />
        ))}
    </g>
  );
}

interface MarkProps {
  layout: Layout;
  className: string;
}

function GenerationLine({
  boundary,
  layout,
  className,
  labelled,
}: MarkProps & { boundary: Boundary; labelled: boolean }) {
  const x = Math.round(layout.x.at(boundary.step)) + 0.5;
  const atEdge = x > layout.right - LABEL_ROOM;
  return (
    <g
      className={`generation ${className}`}
      data-testid="generation"
      data-generation={boundary.generation}
      data-step={boundary.step}
    >
      <line x1={x} x2={x} y1={layout.lane - 8} y2={layout.bottom} />
      {labelled && (
        <text x={atEdge ? x - 4 : x + 4} y={layout.lane - 10} textAnchor={atEdge ? "end" : "start"}>
          {`g${boundary.generation}`}
        </text>
      )}
    </g>
  );
}

function LostMarker({ lost, layout, className }: MarkProps & { lost: Lost }) {
  const x = layout.x.at(lost.step);
  const y = layout.lane - 2;
  const said = `Worker ${lost.worker} lost at step ${lost.step}: ${lost.cause}`;
  return (
    <g
      className={`lost ${className}`}
      data-testid="lost-marker"
      data-step={lost.step}
      data-worker={lost.worker}
      role="img"
      aria-label={said}
    >
      <title>{said}</title>
      <line className="lost-line" x1={x} x2={x} y1={y} y2={layout.bottom} />
      <circle className="lost-dot" cx={x} cy={y} r="7" />
      <path className="lost-cross" d={`M${x - 2.6},${y - 2.6}l5.2,5.2m0,-5.2l-5.2,5.2`} />
    </g>
  );
}

function Span({ recovery, layout, className }: MarkProps & { recovery: Recovery }) {
  const from = layout.x.at(recovery.step);
  const wide = Math.max(SPAN_MIN, layout.x.at(recovery.until) - from);
  const x = Math.max(layout.left, from - (wide === SPAN_MIN ? SPAN_MIN / 2 : 0));
  const said = `Recovered in ${duration(recovery.totalS)}`;
  return (
    <rect
      className={`recovery ${className}`}
      data-testid="recovery-span"
      data-step={recovery.step}
      data-total-s={recovery.totalS}
      x={x}
      y={layout.lane}
      width={wide}
      height={Math.max(0, layout.bottom - layout.lane)}
      aria-label={said}
    />
  );
}

/** A label is drawn unless the one before it (drawn or not) stands too near. */
function hasRoom(all: readonly Boundary[], at: number, layout: Layout): boolean {
  const [mine, next] = [all[at], all[at + 1]];
  if (mine === undefined) return false;
  return next === undefined || layout.x.at(next.step) - layout.x.at(mine.step) >= LABEL_ROOM;
}
