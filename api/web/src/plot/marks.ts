/** What happened at an x, behind the lines of a plot: generations, recoveries, lost workers, checkpoints. No React. */
import type { Range } from "./lines";
import type { Theme } from "./palette";

export interface Mark {
  kind: "generation" | "recovery" | "lost" | "checkpoint";
  x: number;
  /** Where it ends; `x` of what has no length. */
  until: number;
  /** Of an earlier attempt. */
  faint: boolean;
}

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** A recovery that takes less than this is drawn as wide as this. */
export const SPAN_PX = 9;
const CHECKPOINT_PX = 5;

/** Whether any of it lies within. */
export function within({ x, until }: Pick<Mark, "x" | "until">, [low, high]: Range): boolean {
  return until >= low && x <= high;
}

export function drawMarks(pen: CanvasRenderingContext2D, box: Box, x: Range, marks: readonly Mark[], theme: Theme, ratio: number): void {
  const at = (value: number): number => box.left + ((value - x[0]) / (x[1] - x[0])) * box.width;
  pen.save();
  pen.beginPath();
  pen.rect(box.left, box.top, box.width, box.height);
  pen.clip();
  // Spans lie below all lines.
  for (const mark of marks.filter((one) => within(one, x)).sort((a, b) => Number(b.kind === "recovery") - Number(a.kind === "recovery"))) {
    const faint = mark.faint ? 0.4 : 1;
    const from = Math.round(at(mark.x));
    if (mark.kind === "recovery") {
      const wide = Math.max(SPAN_PX * ratio, at(mark.until) - from);
      pen.globalAlpha = 0.24 * faint;
      pen.fillStyle = theme.recovery;
      pen.fillRect(wide > SPAN_PX * ratio ? from : from - wide / 2, box.top, wide, box.height);
    } else if (mark.kind === "checkpoint") {
      pen.globalAlpha = 0.8 * faint;
      pen.fillStyle = theme.muted;
      pen.fillRect(from - ratio / 2, box.top + box.height - CHECKPOINT_PX * ratio, ratio, CHECKPOINT_PX * ratio);
    } else {
      const lost = mark.kind === "lost";
      pen.globalAlpha = (lost ? 0.9 : 0.6) * faint;
      pen.strokeStyle = lost ? theme.bad : theme.muted;
      pen.lineWidth = (lost ? 1.3 : 1) * ratio;
      pen.setLineDash(lost ? [] : [2 * ratio, 4 * ratio]);
      pen.beginPath();
      pen.moveTo(from + 0.5, box.top);
      pen.lineTo(from + 0.5, box.top + box.height);
      pen.stroke();
    }
  }
  pen.restore();
}
