import { expect, test } from "vitest";
import type { Sweep, Trial } from "../wire";
import { axesOf, bestSoFar, keysOf, ordered, rungsOf } from "./leaderboard";
import { orderOf } from "./order";

const sweep: Sweep = {
  id: "sweep_1",
  name: "lr",
  project: "default",
  owner: "me",
  spec: { metric: { name: "loss", goal: "minimize" }, space: {} },
  state: "running",
  reason: null,
  created_at: "2026-11-26T12:00:00Z",
  finished_at: null,
  rungs: [10],
  trials: 3,
  submitted: 3,
  ended: 0,
  best: 1,
  best_score: 0.2,
  improvements: [
    { at: "2026-11-26T12:00:10Z", trial: 0, score: 0.5 },
    { at: "2026-11-26T12:00:20Z", trial: 1, score: 0.2 },
  ],
};

function trial(number: number, scores: number[], lr: number | null, rung = 0): Trial {
  const point = lr === null ? null : { "params.lr": lr, "params.kind": number === 0 ? "a" : [1] };
  const score = scores.at(-1) ?? null;
  return { number, state: "working", point, job: `job_${number}`, job_state: "running", rung, scores, score, step: 12, reason: null };
}

const trials = [trial(0, [0.5], 0.3), trial(1, [0.6, 0.2], 0.1, 1), trial(2, [0.4], 0.2), trial(3, [], null)];
const numbers = (found: Trial[]) => found.map((one) => one.number);

test("without an order the trial that has come furthest comes first, then the better score", () => {
  expect(numbers(ordered(trials, sweep, undefined))).toEqual([1, 2, 0, 3]);
  const most: Sweep = { ...sweep, spec: { ...sweep.spec, metric: { name: "loss", goal: "maximize" } } };
  expect(numbers(ordered(trials, most, undefined))).toEqual([1, 0, 2, 3]);
});

test("by a column those without a value come last, whichever way", () => {
  expect(numbers(ordered(trials, sweep, "params.lr"))).toEqual([1, 2, 0, 3]);
  expect(numbers(ordered(trials, sweep, "-params.lr"))).toEqual([0, 2, 1, 3]);
  expect(numbers(ordered(trials, sweep, "-score"))).toEqual([0, 2, 1, 3]);
  expect(numbers(ordered(trials, sweep, "params.kind"))).toEqual([1, 2, 0, 3]);
});

test("a rung says who has reached it, who ended before and who went on", () => {
  expect(rungsOf(sweep, trials)).toEqual([
    { step: 10, reached: 3, before: 0, went: 1, best: 0.4 },
    { step: null, reached: 1, before: 0, went: 0, best: 0.2 },
  ]);
  const early = trials.map((trial) => (trial.number === 1 ? { ...trial, step: 9 } : trial));
  expect(rungsOf(sweep, early)[0]).toEqual({ step: 10, reached: 2, before: 1, went: 1, best: 0.4 });
});

test("the axes are the keys that differ and the metric", () => {
  expect(keysOf(trials)).toEqual(["params.lr", "params.kind"]);
  expect(axesOf(sweep, trials.slice(0, 3)).map((one) => one.label)).toEqual(["params.kind", "params.lr", "loss"]);
});

test("a key that is drawn log_uniform has a logarithmic axis, however near its values lie", () => {
  const space = { "params.lr": { log_uniform: [0.001, 1] }, "params.kind": {} };
  const axes = axesOf({ ...sweep, spec: { ...sweep.spec, space } }, trials.slice(0, 3));
  expect(axes.map((one) => [one.label, one.log])).toEqual([["params.kind", false], ["params.lr", true], ["loss", false]]);
  expect(axesOf(sweep, trials.slice(0, 3)).map((one) => one.log)).toEqual([false, false, false]);
});

test("the best score so far stays until it is beaten", () => {
  const [line] = bestSoFar(sweep, Date.parse("2026-11-26T12:00:30Z"));
  expect([...(line?.xs ?? [])]).toEqual([10, 20, 20, 30]);
  expect([...(line?.ys ?? [])]).toEqual([0.5, 0.5, 0.2, 0.2]);
  expect(bestSoFar({ ...sweep, improvements: [] }, 0)).toEqual([]);
});

test("an order is a text of the address", () => {
  expect([orderOf({ sort: "-score" }), orderOf({ sort: ["a"] }), orderOf({})]).toEqual([{ sort: "-score" }, {}, {}]);
});
