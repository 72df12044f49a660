/** The marks of all charts of a job, above them: each can be pointed at and is read out. */
import { useMemo } from "react";
import { sidesOf } from "../plot/axes";
import type { Range } from "../plot/lines";
import { SPAN_PX, within } from "../plot/marks";
import { useWidth } from "../plot/useWidth";
import { distinct, saidOf, type Placed } from "./happened";

const LABEL_ROOM = 26;

export function MarksLane({ placed, x }: { placed: readonly Placed[]; x: Range }) {
  const [box, width] = useWidth();
  const { left, right } = sidesOf(width);
  const room = Math.max(1, width - left - right);
  const at = (value: number): number => left + ((Math.min(x[1], Math.max(x[0], value)) - x[0]) / (x[1] - x[0])) * room;
  const shown = useMemo(
    () => distinct(placed.filter((one) => within(one, x)), x, room),
    [placed, x, room],
  );
  const labelled = new Set(withRoom(shown.filter((one) => one.kind === "generation"), at));
  return (
    <div
      className="marks-lane"
      ref={box}
      role="group"
      aria-label="What happened"
      data-testid="charts"
      data-x-min={x[0]}
      data-x-max={x[1]}
      data-plot-left={left}
      data-plot-right={width - right}
    >
      {width > 0 &&
        shown.map((one) => <MarkAt key={one.key} one={one} left={at(one.x)} wide={at(one.until) - at(one.x)} label={labelled.has(one)} />)}
    </div>
  );
}

const TEST_IDS = { generation: "generation", recovery: "recovery-span", lost: "lost-marker", checkpoint: "checkpoint" };

function MarkAt({ one, left, wide, label }: { one: Placed; left: number; wide: number; label: boolean }) {
  const said = saidOf(one);
  const size = one.kind === "recovery" ? { width: Math.max(SPAN_PX, wide), marginLeft: wide > SPAN_PX ? 0 : -SPAN_PX / 2 } : {};
  return (
    <span
      className={`mark mark-${one.kind} ${one.faint ? "mark-before" : ""}`}
      style={{ left, ...size }}
      role="img"
      aria-label={said}
      title={said}
      data-testid={TEST_IDS[one.kind]}
      data-step={one.of.step}
      {...(one.kind === "generation" && { "data-generation": one.of.generation })}
      {...(one.kind === "lost" && { "data-worker": one.of.worker })}
      {...(one.kind === "recovery" && { "data-total-s": one.of.totalS })}
    >
      {one.kind === "generation" && label && `g${one.of.generation}`}
    </span>
  );
}

/** Those whose label has room before the next one; whether that has a label or not. */
function withRoom(all: readonly Placed[], at: (x: number) => number): Placed[] {
  return all.filter((one, place) => {
    const next = all[place + 1];
    return next === undefined || at(next.x) - at(one.x) >= LABEL_ROOM;
  });
}
