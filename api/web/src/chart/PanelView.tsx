/** One panel of the charts: its title, grid, axis and line. */
import { number } from "../format";
import { shown, unitOf, type Layout, type Panel } from "./layout";
import { linePath, logTicks, runs, smooth, ticks, wholeTicks, type Point } from "./scale";

interface Props {
  panel: Panel;
  layout: Layout;
  clip: string;
}

export function PanelView({ panel, layout, clip }: Props) {
  const { series, top, bottom } = panel;
  const last = series.points.at(-1);
  return (
    <g className={`panel metric-${series.name.replace(/\W/g, "-")}`}>
      <text className="panel-title" x={layout.left} y={top - 9}>
        {series.label}
        {last && (
          <tspan className="panel-value" dx="8">
            {number(last.value)} {unitOf(series, last.value)}
          </tspan>
        )}
      </text>
      <Grid panel={panel} layout={layout} />
      <g clipPath={`url(#${clip})`}>
        <Lines panel={panel} layout={layout} />
      </g>
      <line className="axis" x1={layout.left} x2={layout.right} y1={bottom} y2={bottom} />
      {last === undefined && (
        <text className="panel-empty" x={(layout.left + layout.right) / 2} y={(top + bottom) / 2 + 4}>
          no values yet
        </text>
      )}
    </g>
  );
}

function Grid({ panel, layout }: { panel: Panel; layout: Layout }) {
  const marks = panel.series.points.length > 0 ? yTicks(panel) : [];
  return (
    <g className="grid">
      {marks.map((tick) => (
        <g key={tick} transform={`translate(0,${Math.round(panel.y.at(tick)) + 0.5})`}>
          <line x1={layout.left} x2={layout.right} />
          <text x={layout.left - 8} dy="0.32em">
            {number(tick)}
          </text>
        </g>
      ))}
    </g>
  );
}

function yTicks({ series, y }: Panel): number[] {
  const [low, high] = y.domain;
  const wanted = Math.max(2, Math.round(series.height / 42));
  if (series.log && low > 0) return logTicks(low, high);
  return series.whole ? wholeTicks(low, high, Math.max(4, wanted)) : ticks(low, high, wanted);
}

function Lines({ panel, layout }: { panel: Panel; layout: Layout }) {
  const { series, y } = panel;
  const parts = runs(series.points);
  return (
    <>
      {parts.map((run, at) => {
        const newest = at === parts.length - 1;
        const draw = (points: readonly Point[]): string =>
          linePath(shown(points, layout.x.domain), layout.x, y, series.shape);
        const smoothing = series.smoothing > 0 && run.length > 2;
        return (
          <g key={at} className={newest ? "run" : "run run-before"}>
            {smoothing && <path className="line line-raw" d={draw(run)} />}
            <path
              className="line"
              d={draw(smoothing ? smooth(run, series.smoothing) : run)}
              data-testid={newest ? `series-${series.name}` : undefined}
              data-points={run.length}
            />
            {run.length === 1 && run[0] && (
              <circle className="dot" cx={layout.x.at(run[0].step)} cy={y.at(run[0].value)} r="2.5" />
            )}
          </g>
        );
      })}
    </>
  );
}
