import { describe, expect, test } from "vitest";
import type { JobEvent, SystemSeries, Worker } from "../wire";
import { absences, lanesOf, ownTimes, stepTimes } from "./lanes";
import { laneAt } from "./paintLanes";
import { sharesOf } from "./shares";
import type { Recovery } from "../history";

const START = Date.parse("2026-11-20T10:00:00Z") / 1000;
const event = (second: number, type: string, data: Record<string, unknown> = {}, attempt = 1): JobEvent => ({
  seq: second,
  type,
  at: new Date((START + second) * 1000).toISOString(),
  attempt,
  generation: 1,
  data,
});
const EVENTS = [
  event(0, "job.starting"),
  event(5, "generation.formed", { members: ["w0", "w1"], step: 0 }),
  event(5, "worker.joined", { worker: "w0", step: 0 }),
  event(5, "worker.joined", { worker: "w1", step: 0 }),
  event(20, "worker.lost", { worker: "w1", cause: "died" }),
  event(24, "recovered", { total_s: 3 }),
  event(30, "generation.formed", { members: ["w0", "w2"], step: 9 }),
  event(30, "worker.joined", { worker: "w2", step: 9 }),
  event(40, "worker.left", { worker: "w2", cause: "resize" }),
];
const curve = { steps: [8, 9, 10, 12], times: [START + 26, START + 29, START + 33, START + 34] };
const lanes = (events: JobEvent[], now = 50) =>
  lanesOf(events, [{ id: "w0", node: "n1" } as Worker], curve, START + now).map(({ worker, node, spans, end }) => [
    worker,
    node,
    spans.map((one) => [one.state, one.from - START, one.until - START]),
    end && [end.state, end.at - START, end.why],
  ]);

describe("the lanes of workers", () => {
  test("tell who started, was active, recovered, was healed, was lost and left", () => {
    expect(lanes(EVENTS)).toEqual([
      ["w0", "n1", [["starting", 0, 5], ["active", 5, 21], ["recovering", 21, 24], ["active", 24, 50]], null],
      ["w1", null, [["starting", 0, 5], ["active", 5, 20]], ["lost", 20, "died"]],
      ["w2", null, [["healing", 30, 33], ["active", 33, 40]], ["left", 40, "resize"]],
    ]);
  });

  test("tell the node also of who is gone, where that was told", () => {
    const told = EVENTS.map((one) => (one.data.worker === "w1" ? { ...one, data: { ...one.data, node: "n2" } } : one));
    expect(lanes(told).map(([worker, node]) => [worker, node])).toEqual([["w0", "n1"], ["w1", "n2"], ["w2", null]]);
  });

  test("say nothing of healing where the first step behind it is not among the points", () => {
    const far = [...EVENTS.slice(0, 7), event(30, "worker.joined", { worker: "w2", step: 10 })];
    expect(lanes(far)[2]).toEqual(["w2", null, [["active", 30, 50]], null]);
  });

  test("end with the job, and with an attempt", () => {
    expect(lanes([...EVENTS.slice(0, 4), event(12, "job.succeeded")])[0]?.[2]).toEqual([["starting", 0, 5], ["active", 5, 12]]);
    const again = [...EVENTS.slice(0, 4), event(12, "job.starting", {}, 2), event(15, "worker.joined", { worker: "w0" }, 2)];
    expect(lanes(again, 20).map(([worker, , spans]) => [worker, spans])).toEqual([
      ["w0", [["starting", 0, 5], ["active", 5, 12]]],
      ["w1", [["starting", 0, 5], ["active", 5, 12]]],
      ["w0", [["starting", 12, 15], ["active", 15, 20]]],
    ]);
  });

  test("are pointed at by row and time", () => {
    const picture = { lanes: lanesOf(EVENTS, [], curve, START + 50), time: [0, 100] as const, heat: [], own: new Map<string, number[]>(), nodes: [] };
    expect(laneAt(picture, 74 + 50, 6 + 18 + 2, 74 + 100 + 14)).toEqual({ lane: 0, time: 50 });
    expect(laneAt(picture, 74 + 50, 8, 188)?.lane).toBe(-1);
    expect(laneAt(picture, 10, 26, 188)).toBeNull();
  });
});

test("the time of a step is the mean of those that were committed then", () => {
  const even = { steps: [0, 10, 12], times: [0, 10, 20] };
  expect(stepTimes(even, [0, 20], 2)).toEqual([1, 20 / 12]);
  expect(stepTimes(even, [40, 50], 2)).toEqual([null, null]);
});

test("while a job is paused no step takes long", () => {
  const span = (from: number, until: number) => ({ state: "active", from, until }) as const;
  const lane = { attempt: 1, node: null, end: null };
  const lanes = [
    { ...lane, worker: "w0", spans: [span(0, 4), span(4, 10)] },
    { ...lane, worker: "w1", spans: [span(1, 8)] },
    { ...lane, worker: "w0", attempt: 2, spans: [span(30, 40)] },
  ];
  expect(absences(lanes)).toEqual([[10, 30]]);
  const paused = { steps: [0, 10, 11, 21], times: [0, 9, 31, 40] };
  expect(stepTimes(paused, [0, 40], 4, absences(lanes))).toEqual([0.9, null, null, 0.9]);
});

test("the own time of a worker stands where it was measured, and of several the slowest", () => {
  const series = (kind: string, id: string, step_s: (number | null)[]) =>
    ({ kind, id, node: "n", times: [10, 20, 22], spans_s: [10, 5, 2], figures: { step_s }, unmet: {} }) as unknown as SystemSeries;
  const own = ownTimes([series("worker", "w0", [1, 4, 2]), series("worker", "w1", [null, 3, null]), series("node", "n", [9, 9, 9])], [0, 40], 8);
  expect([...own]).toEqual([
    ["w0", [1, 1, null, 4, 2, null, null, null]],
    ["w1", [null, null, null, 3, null, null, null, null]],
  ]);
});

const named = (name: string, values: number[]) => ({ job: "j", name, steps: [0, 10, 20], times: [0, 10, 30], values });
const UNTOLD = { loading: undefined, exposed: undefined, exchange: undefined, idle: undefined };

test("shares of a stretch are those of its time, and 1 together", () => {
  const waits = { ...UNTOLD, exposed: named("x", [0.5, 0.5, 0.5]), loading: named("y", [0.25, 0.25, 0.75]) };
  const [first, second] = sharesOf(named("loss", [1, 1, 1]), waits, [{ until: 12, totalS: 10 } as Recovery], 2);
  expect(first).toEqual({ from: 0, until: 10, seconds: 10, recovery: 0, exchange: 0.5, idle: 0, loading: 0.25, rest: 0.25 });
  // Waits that were measured by more than one worker may be more than there is.
  expect(second).toEqual({ from: 10, until: 20, seconds: 20, recovery: 0.5, exchange: 0.25, idle: 0, loading: 0.25, rest: 0 });
  expect(sharesOf(named("loss", [1, 1, 1]), UNTOLD, [], 1)[0]).toMatchObject({ loading: 0, rest: 1 });
  expect(sharesOf(undefined, UNTOLD, [], 9)).toEqual([]);
});

test("waiting for others is apart from the exchange where workers tell of both", () => {
  const only = (values: number[], steps: number[]) => ({ ...named("z", values), steps, times: steps });
  const waits = { ...UNTOLD, exposed: named("x", [0.6, 0.6, 0.6]), exchange: only([0.125], [5]), idle: only([0.25], [5]) };
  const [first, second] = sharesOf(named("loss", [1, 1, 1]), waits, [], 2);
  expect(first).toMatchObject({ exchange: 0.125, idle: 0.25, rest: 0.625 });
  expect(second).toMatchObject({ exchange: 0.6, idle: 0, rest: 0.4 });
});
