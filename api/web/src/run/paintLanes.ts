/** The lanes of workers on a canvas: where things lie, and drawing them. */
import { duration } from "../format";
import { durationTicks } from "../plot/axes";
import type { Range } from "../plot/lines";
import type { Theme } from "../plot/palette";
import type { Lane, LaneState } from "./lanes";

export const [ROW_PX, TOP_PX, FOOT_PX, SIDE_PX, RIGHT_PX] = [18, 6, 22, 74, 14];
const HEAT_PX = 4;

export interface LanePicture {
  lanes: readonly Lane[];
  /** In Unix seconds. */
  time: Range;
  /** The mean seconds of a step in equal parts of the time. */
  heat: readonly (number | null)[];
  /** The seconds that each worker took itself for a step, likewise. */
  own: ReadonlyMap<string, readonly (number | null)[]>;
  /** The nodes that are known, each with a colour of its own. */
  nodes: readonly string[];
}

type Pen = CanvasRenderingContext2D;

export function heightOf(lanes: number): number {
  return TOP_PX + (lanes + 1) * ROW_PX + FOOT_PX;
}

/** The lane (-1: the row of step times) and the time at a pixel; null beside all of them. */
export function laneAt({ lanes, time }: LanePicture, x: number, y: number, width: number): { lane: number; time: number } | null {
  const row = Math.floor((y - TOP_PX) / ROW_PX) - 1;
  const share = (x - SIDE_PX) / (width - SIDE_PX - RIGHT_PX);
  if (row < -1 || row >= lanes.length || share < 0 || share > 1) return null;
  return { lane: row, time: time[0] + share * (time[1] - time[0]) };
}

export function paintLanes(pen: Pen, picture: LanePicture, width: number, height: number, theme: Theme): void {
  const { lanes, time, heat, nodes, own } = picture;
  const room = width - SIDE_PX - RIGHT_PX;
  const at = (when: number): number => SIDE_PX + ((Math.min(time[1], Math.max(time[0], when)) - time[0]) / (time[1] - time[0])) * room;
  pen.clearRect(0, 0, width, height);
  write(pen, "step time", SIDE_PX - 8, TOP_PX + 13, "right", theme.muted);
  paintHeat(pen, heat, scaleOf(heat), TOP_PX + 3, ROW_PX - 6, room, theme);
  // By one scale, so that the slow are told from the others.
  const scale = scaleOf([...own.values()].flat());
  lanes.forEach((lane, row) => {
    const y = TOP_PX + (row + 1) * ROW_PX;
    const place = lane.node === null ? -1 : nodes.indexOf(lane.node);
    const colour = place < 0 ? theme.muted : (theme.runs[place % theme.runs.length] ?? theme.muted);
    write(pen, lane.worker, SIDE_PX - 8, y + 13, "right", theme.ink);
    for (const span of lane.spans) {
      if (span.until < time[0] || span.from > time[1]) continue;
      pen.globalAlpha = ALPHA[span.state];
      pen.fillStyle = span.state === "recovering" ? theme.recovery : colour;
      pen.fillRect(at(span.from), y + 3, Math.max(1, at(span.until) - at(span.from)), ROW_PX - 6 - (own.size > 0 ? HEAT_PX - 1 : 0));
    }
    pen.globalAlpha = 1;
    const [from, until] = [lane.spans[0]?.from ?? time[0], lane.spans.at(-1)?.until ?? time[1]];
    const there = own.get(lane.worker)?.map((value, cell, { length }) => (within(time, (cell + 0.5) / length, from, until) ? value : null));
    paintHeat(pen, there ?? [], scale, y + ROW_PX - 6, HEAT_PX, room, theme);
    if (lane.end && lane.end.at >= time[0] && lane.end.at <= time[1]) paintEnd(pen, lane.end.state, at(lane.end.at), y, theme);
  });
  for (const mark of durationTicks(time[1] - time[0], Math.max(2, Math.floor(room / 110)))) {
    write(pen, mark === 0 ? "0" : duration(mark), at(time[0] + mark), height - 6, "center", theme.muted);
  }
}

const ALPHA: Record<LaneState, number> = { starting: 0.22, healing: 0.45, active: 0.8, recovering: 0.75 };

function within(time: Range, share: number, from: number, until: number): boolean {
  const at = time[0] + share * (time[1] - time[0]);
  return at >= from && at <= until;
}

/** The quickest and the slowest. */
function scaleOf(heat: readonly (number | null)[]): Range {
  const known = heat.filter((value) => value !== null);
  return [known.reduce((low, one) => Math.min(low, one), Infinity), known.reduce((high, one) => Math.max(high, one), 0)];
}

/** The slower a step, the stronger, on a logarithmic scale. */
function paintHeat(pen: Pen, heat: readonly (number | null)[], [low, high]: Range, y: number, height: number, room: number, theme: Theme): void {
  pen.fillStyle = theme.bad;
  heat.forEach((value, cell) => {
    if (value === null) return;
    pen.globalAlpha = 0.08 + 0.82 * (high > low && low > 0 ? Math.log(value / low) / Math.log(high / low) : 0);
    const from = Math.round(SIDE_PX + (cell / heat.length) * room);
    pen.fillRect(from, y, Math.round(SIDE_PX + ((cell + 1) / heat.length) * room) - from, height);
  });
  pen.globalAlpha = 1;
}

function paintEnd(pen: Pen, state: "lost" | "left", x: number, y: number, theme: Theme): void {
  pen.strokeStyle = state === "lost" ? theme.bad : theme.muted;
  pen.lineWidth = 2;
  pen.beginPath();
  if (state === "lost") {
    pen.moveTo(x - 4, y + 5);
    pen.lineTo(x + 4, y + 13);
    pen.moveTo(x - 4, y + 13);
    pen.lineTo(x + 4, y + 5);
  } else {
    pen.moveTo(x, y + 1);
    pen.lineTo(x, y + ROW_PX - 1);
  }
  pen.stroke();
}

function write(pen: Pen, text: string, x: number, y: number, align: CanvasTextAlign, colour: string): void {
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = align;
  pen.fillStyle = colour;
  pen.fillText(text.length > 10 ? `${text.slice(0, 9)}…` : text, x, y);
}
