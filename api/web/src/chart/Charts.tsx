/** The stacked charts of a job: one svg, one x axis, crosshair and zoom. */
import {
  useEffect,
  useId,
  useRef,
  useState,
  type KeyboardEvent,
  type PointerEvent,
  type RefObject,
} from "react";
import { layout, type Layout, type Series } from "./layout";
import { Marks } from "./Marks";
import { PanelView } from "./PanelView";
import { nearest, runs, wholeTicks } from "./scale";
import { Tooltip, type Happenings } from "./Tooltip";

const DRAG_PX = 8;

interface Props {
  series: readonly Series[];
  attempt: number;
  happened: Happenings;
  summary: string;
}

export function Charts({ series, attempt, happened, summary }: Props) {
  const [box, width] = useWidth();
  const [zoom, setZoom] = useState<readonly [number, number] | null>(null);
  const [step, setStep] = useState<number | null>(null);
  const [grip, setGrip] = useState<number | null>(null);
  const clip = useId();
  const marks = [...happened.generations, ...happened.lost, ...happened.recoveries].map((one) => one.step);
  const plan = layout(series, width, marks, zoom);
  const drag =
    grip !== null && step !== null ? ([Math.min(grip, step), Math.max(grip, step)] as const) : null;

  const release = (): void => {
    if (drag && plan.x.at(drag[1]) - plan.x.at(drag[0]) > DRAG_PX) setZoom(drag);
    setGrip(null);
  };
  const stepUnder = (event: PointerEvent): number =>
    snap(plan, event.clientX - event.currentTarget.getBoundingClientRect().left);
  return (
    <div className="charts" ref={box}>
      {zoom && (
        <button type="button" className="small zoom-out" onClick={() => setZoom(null)}>
          Show all steps
        </button>
      )}
      <svg
        width={plan.width}
        height={plan.height}
        role="application"
        aria-label={summary}
        tabIndex={0}
        data-testid="charts"
        data-x-min={plan.x.domain[0]}
        data-x-max={plan.x.domain[1]}
        data-plot-left={plan.left}
        data-plot-right={plan.right}
        onPointerDown={(event) =>
          event.pointerType === "mouse" && event.button === 0 && setGrip(stepUnder(event))
        }
        onPointerMove={(event) => setStep(stepUnder(event))}
        onPointerUp={release}
        onDoubleClick={() => setZoom(null)}
        onPointerLeave={() => {
          setStep(null);
          setGrip(null);
        }}
        onBlur={() => setStep(null)}
        onKeyDown={(event) => setStep(keyed(event, plan, step))}
      >
        <clipPath id={clip}>
          <rect x={plan.left} y={0} width={plan.right - plan.left} height={plan.bottom} />
        </clipPath>
        <Marks layout={plan} attempt={attempt} {...happened} />
        {plan.panels.map((panel) => (
          <PanelView key={panel.series.name} panel={panel} layout={plan} clip={clip} />
        ))}
        <StepAxis layout={plan} />
        {drag && (
          <rect
            className="brush"
            x={plan.x.at(drag[0])}
            width={plan.x.at(drag[1]) - plan.x.at(drag[0])}
            y={plan.lane}
            height={plan.bottom - plan.lane}
          />
        )}
        {step !== null && <Crosshair layout={plan} step={step} />}
      </svg>
      {step !== null && <Tooltip layout={plan} step={step} happened={happened} />}
    </div>
  );
}

function StepAxis({ layout: plan }: { layout: Layout }) {
  const wanted = Math.max(2, Math.round((plan.right - plan.left) / 90));
  return (
    <g className="step-axis">
      {wholeTicks(plan.x.domain[0], plan.x.domain[1], wanted).map((tick) => (
        <text key={tick} x={plan.x.at(tick)} y={plan.bottom + 16}>
          {tick.toLocaleString("en-US")}
        </text>
      ))}
      <text className="axis-name" x={plan.right} y={plan.bottom + 32}>
        step
      </text>
    </g>
  );
}

function Crosshair({ layout: plan, step }: { layout: Layout; step: number }) {
  const x = plan.x.at(step);
  return (
    <g className="crosshair" pointerEvents="none">
      <line x1={x} x2={x} y1={plan.lane} y2={plan.bottom} />
      {plan.panels.map(({ series, y }) => {
        const point = nearest(runs(series.points).at(-1) ?? [], step);
        const cy = point && y.at(point.value);
        return point && Number.isFinite(cy) ? (
          <circle
            key={series.name}
            className={`metric-${series.name.replace(/\W/g, "-")}`}
            cx={plan.x.at(point.step)}
            cy={cy}
            r="3.5"
          />
        ) : null;
      })}
    </g>
  );
}

/** The step under a pixel: that of the nearest point of the first panel that has any. */
function snap(plan: Layout, pixel: number): number {
  const within = Math.min(plan.right, Math.max(plan.left, pixel));
  const step = plan.x.back(within);
  const points = plan.panels
    .map(({ series }) => runs(series.points).at(-1) ?? [])
    .find((run) => run.length > 0);
  const snapped = points && nearest(points, step)?.step;
  return snapped === undefined
    ? Math.round(step)
    : Math.min(plan.x.domain[1], Math.max(plan.x.domain[0], snapped));
}

function keyed(event: KeyboardEvent, plan: Layout, step: number | null): number | null {
  const [low, high] = plan.x.domain;
  const stride = Math.max(1, Math.round((high - low) / 100));
  const moves: Record<string, number> = { ArrowLeft: -stride, ArrowRight: stride };
  const move = moves[event.key];
  if (event.key === "Escape") return null;
  if (move === undefined) return step;
  event.preventDefault();
  return Math.min(high, Math.max(low, (step ?? Math.round((low + high) / 2)) + move));
}

function useWidth(): [RefObject<HTMLDivElement | null>, number] {
  const box = useRef<HTMLDivElement | null>(null);
  const [width, setWidth] = useState(720);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}
