/** The workers of a job over time: one lane each, in the colour of its node, and above them how long steps took. */
import { useCallback, useMemo, useState } from "react";
import { clock, duration } from "../format";
import { Card } from "../parts/Card";
import { Painted } from "../plot/Painted";
import type { Range } from "../plot/lines";
import type { Theme } from "../plot/palette";
import type { Key } from "../plot/picture";
import type { Cell } from "../plot/save";
import type { Curve, SystemSeries } from "../wire";
import { absences, ownTimes, stepTimes, type Lane } from "./lanes";
import { nodeName, type NodeNames } from "../nodes";
import { heightOf, laneAt, paintLanes, type LanePicture } from "./paintLanes";

const CELLS = 160;
const MOST_LANES = 200;

interface Props {
  lanes: readonly Lane[];
  /** In the order of their colours. */
  nodes: readonly string[];
  names: NodeNames;
  curve: Curve | undefined;
  /** What workers use, with the time that each takes for a step. */
  series: readonly SystemSeries[];
  /** The stretch of time that is zoomed in to. */
  zoom: Range | null;
}

export function Lanes({ lanes: all, nodes, names, curve, series, zoom }: Props) {
  const [pointed, setPointed] = useState<{ lane: number; time: number; left: number; right: number | null } | null>(null);
  const picture = useMemo(() => pictureOf(all.slice(-MOST_LANES), nodes, curve, series, zoom), [all, nodes, curve, series, zoom]);
  const paint = useCallback(
    (pen: CanvasRenderingContext2D, width: number, height: number, theme: Theme) => {
      if (picture) paintLanes(pen, picture, width, height, theme);
    },
    [picture],
  );
  if (picture === null) return null;
  const point = (at: { x: number; y: number; width: number } | null): void => {
    const found = at && laneAt(picture, at.x, at.y, at.width);
    setPointed(found && { ...found, left: at.x + 14, right: at.x > at.width / 2 ? at.width - at.x + 14 : null });
  };
  const said = pointed && wordsAt(picture, names, pointed.lane, pointed.time);
  return (
    <Card title="Workers over time" className="lanes-card">
      <div className="lanes">
        <Painted
          name="Workers over time"
          height={heightOf(picture.lanes.length)}
          paint={paint}
          rows={() => rowsOf(all, names)}
          keys={(theme) => keysOf(picture, names, theme)}
          onPoint={point}
        >
          <Legend picture={picture} names={names} />
        </Painted>
        {pointed && said && (
          <div className="tooltip" style={pointed.right === null ? { left: pointed.left } : { right: pointed.right }} aria-hidden="true">
            {said.map((line) => (
              <p key={line}>{line}</p>
            ))}
          </div>
        )}
      </div>
      {all.length > MOST_LANES && <p className="muted plot-note">The newest {MOST_LANES} of {all.length} are drawn; the table has all.</p>}
    </Card>
  );
}

function Legend({ picture: { nodes, lanes, own }, names }: { picture: LanePicture; names: NodeNames }) {
  const unknown = lanes.some((lane) => lane.node === null);
  const measured = own.size > 0;
  return (
    <ul className="legend charts-legend">
      {nodes.map((id, at) => (
        <li key={id} title={id}>
          <i className={`swatch lane-node run-${at % 6}`} aria-hidden="true" />
          node {nodeName(names, id)}
        </li>
      ))}
      {unknown && (
        <li title="Jobs of versions before 0.2 tell the nodes of workers that are there now.">
          <i className="swatch lane-gone" aria-hidden="true" />
          gone, node not known
        </li>
      )}
      <li>
        <i className="swatch lane-starting" aria-hidden="true" />
        starting
      </li>
      <li>
        <i className="swatch lane-healing" aria-hidden="true" />
        healing
      </li>
      <li>
        <i className="key key-recovery" aria-hidden="true" />
        recovering
      </li>
      {measured && (
        <li title="What a worker loads and computes itself, without what it waits for others.">
          <i className="key key-own" aria-hidden="true" />
          own time of a step
        </li>
      )}
      <li>
        <b className="bad" aria-hidden="true">
          ×
        </b>
        lost
      </li>
      <li>
        <b className="muted" aria-hidden="true">
          |
        </b>
        left
      </li>
    </ul>
  );
}

/** What the legend shows, for the picture as a file. */
function keysOf({ nodes }: LanePicture, names: NodeNames, theme: Theme): Key[] {
  const named = nodes.map((id, at) => ({ label: `node ${nodeName(names, id)}`, colour: theme.runs[at % theme.runs.length] ?? theme.muted }));
  return [
    ...named,
    { label: "starting", colour: theme.muted, alpha: 0.25 },
    { label: "healing", colour: theme.muted, alpha: 0.55 },
    { label: "recovering", colour: theme.recovery, alpha: 0.6 },
  ];
}

function pictureOf(lanes: readonly Lane[], nodes: readonly string[], curve: Curve | undefined, series: readonly SystemSeries[], zoom: Range | null): LanePicture | null {
  const spans = lanes.flatMap((lane) => lane.spans);
  if (spans.length === 0) return null;
  const whole: Range = [
    spans.reduce((low, one) => Math.min(low, one.from), Infinity),
    spans.reduce((high, one) => Math.max(high, one.until), -Infinity),
  ];
  const time = zoom ?? whole;
  return { lanes, time, nodes, heat: curve ? stepTimes(curve, time, CELLS, absences(lanes)) : [], own: ownTimes(series, time, CELLS) };
}

function wordsAt({ lanes, time: [from, until], heat, own }: LanePicture, names: NodeNames, row: number, time: number): string[] | null {
  const when = clock(new Date(time * 1000).toISOString());
  const cell = (cells: readonly (number | null)[]): number | null => cells[Math.min(cells.length - 1, Math.floor(((time - from) / (until - from)) * cells.length))] ?? null;
  if (row < 0) {
    const took = cell(heat);
    return took === null ? null : [when, `a step took ${duration(took)}`];
  }
  const lane = lanes[row];
  const span = lane?.spans.find((one) => time >= one.from && time <= one.until);
  if (!lane || !span) return null;
  const end = lane.end ? [`${lane.end.state} at ${clock(new Date(lane.end.at * 1000).toISOString())}${lane.end.why && `: ${lane.end.why}`}`] : [];
  const where = lane.node === null ? [] : [`node ${nodeName(names, lane.node)}`];
  const took = cell(own.get(lane.worker) ?? []);
  const alone = took === null ? [] : [`${duration(took)} of its own for a step`];
  return [`${when} · ${lane.worker}`, `${span.state} for ${duration(span.until - span.from)}`, ...alone, ...where, ...end];
}

/** Every span of every lane, one a row. */
function rowsOf(lanes: readonly Lane[], names: NodeNames): Cell[][] {
  const at = (seconds: number): string => clock(new Date(seconds * 1000).toISOString());
  const of = (node: string | null): string => (node === null ? "" : nodeName(names, node));
  const rows = lanes.flatMap(({ worker, attempt, node, spans, end }): Cell[][] => [
    ...spans.map((one): Cell[] => [worker, attempt, of(node), one.state, at(one.from), at(one.until), duration(one.until - one.from)]),
    ...(end ? [[worker, attempt, of(node), end.why ? `${end.state}: ${end.why}` : end.state, at(end.at), "", ""]] : []),
  ]);
  return [["Worker", "Attempt", "Node", "State", "From", "Until", "For"], ...rows];
}
