import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, test } from "vitest";
import { boundaries, lostWorkers, recoveries } from "../history";
import { seriesOf } from "../series";
import type { JobEvent, MetricPoint } from "../wire";
import { Charts } from "./Charts";
import { layout, unitOf, shown } from "./layout";

const AT = "2026-11-20T10:00:00Z";
const event = (seq: number, type: string, data: Record<string, unknown>): JobEvent => ({
  seq,
  type,
  at: AT,
  attempt: 1,
  generation: seq,
  data,
});
const metric = (steps: number): MetricPoint[] =>
  Array.from({ length: steps }, (_, step) => ({
    step: step + 1,
    value: 1 / (step + 1),
    at: AT,
    generation: 1,
  }));

const options = { log: false, smoothing: 0 };
const series = ["loss", "samples_per_s", "world_size"].map((name) => seriesOf(name, metric(100), options));
const events = [
  event(1, "generation.formed", { members: ["w0", "w1"], step: 1 }),
  event(2, "worker.lost", { worker: "w1", step: 40, cause: "killed" }),
  event(3, "recovered", { total_s: 0.05, detect_s: 0.05, steps_lost: 0, step: 41 }),
];
const happened = {
  lost: lostWorkers(events),
  recoveries: recoveries(events),
  generations: boundaries(events, []),
};
const drawn = renderToStaticMarkup(<Charts series={series} attempt={1} happened={happened} summary="s" />);

describe("the charts", () => {
  test("count one worker and several in words", () => {
    const size = seriesOf("world_size", metric(1), options);
    expect([unitOf(size, 1), unitOf(size, 2)]).toEqual(["worker", "workers"]);
  });

  test("say how many points each line has", () => {
    expect(drawn).toMatch(/data-testid="series-loss" data-points="100"/);
    expect(drawn).toMatch(/data-testid="series-world_size" data-points="100"/);
  });

  test("put a lost worker at the step of its event, on the lines' own axis", () => {
    const plan = layout(series, 720, [40], null);
    const marker = /data-testid="lost-marker" data-step="40".*?<line class="lost-line" x1="([\d.]+)"/.exec(
      drawn,
    );
    expect(Number(marker?.[1])).toBeCloseTo(plan.x.at(40));
  });

  test("mark generations and recoveries", () => {
    expect(drawn).toContain('data-testid="generation" data-generation="1" data-step="1"');
    expect(drawn).toContain('data-testid="recovery-span" data-step="40" data-total-s="0.05"');
  });

  test("hold nothing that a strict content security policy would block", () => {
    expect(drawn).not.toMatch(/\sstyle="/);
  });
});

describe("the layout", () => {
  test("gives all panels one x axis that holds every mark", () => {
    const plan = layout(series, 720, [140], null);
    expect(plan.x.domain).toEqual([1, 140]);
    expect(plan.panels.map((panel) => panel.bottom > panel.top)).toEqual([true, true, true]);
  });

  test("cuts a zoomed line one point outside the axis", () => {
    expect(shown(metric(100), [10, 12]).map((point) => point.step)).toEqual([9, 10, 11, 12, 13]);
  });
});
