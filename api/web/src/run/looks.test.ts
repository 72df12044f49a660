import { expect, test } from "vitest";
import { metricLook, stepRate, unitOf } from "./looks";

test("one worker and several are counted in words", () => {
  const size = metricLook("world_size");
  expect([unitOf(size, 1), unitOf(size, 2)]).toEqual(["worker", "workers"]);
});

test("the rate is that of the newest points", () => {
  expect(stepRate({ steps: [0, 10, 20], times: [0, 5, 6] }, 2)).toBe(10);
  expect([stepRate(undefined), stepRate({ steps: [1], times: [1] })]).toEqual([undefined, undefined]);
});
