import { expect, test } from "vitest";
import { resizeFault } from "./parts/Actions";
import { safeLink } from "./parts/JobHeader";
import { routeOf } from "./router";
import { seriesOf, stepRate } from "./series";
import { hasEnded, STATES, workerBounds } from "./wire";

test("every path has its view", () => {
  expect(["/", "/jobs", "/submit", "/access", "/jobs/job_1", "/jobs/job%201/", "/nowhere"].map(routeOf)).toEqual([
    { view: "jobs" },
    { view: "jobs" },
    { view: "submit" },
    { view: "access" },
    { view: "job", id: "job_1" },
    { view: "job", id: "job 1" },
    { view: "unknown" },
  ]);
});

test("links that came as data never run anything", () => {
  expect(["javascript:alert(1)", "//elsewhere", "/mlflow/#/1", "https://m"].map(safeLink)).toEqual([
    null,
    null,
    "/mlflow/#/1",
    "https://m",
  ]);
});

test("a resize needs two whole numbers in order", () => {
  expect(resizeFault(2, 3)).toBeNull();
  expect(resizeFault(3, 2)).toContain("cannot be larger");
  expect(resizeFault(0, 2)).toContain("whole numbers");
  expect(resizeFault(1.5, 2)).toContain("whole numbers");
});

test("three states are ends", () => {
  expect(STATES.filter(hasEnded)).toEqual(["succeeded", "failed", "cancelled"]);
});

test("a spec without workers has one", () => {
  expect(workerBounds({})).toEqual({ min: 1, max: 1 });
  expect(workerBounds({ workers: { min: 2, max: 4 } })).toEqual({ min: 2, max: 4 });
});

test("points are drawn in order of time, and give the rate", () => {
  const point = (step: number, second: number) => ({
    step,
    value: 1,
    generation: 1,
    at: `2026-11-20T10:00:0${second}Z`,
  });
  const mixed = [point(20, 2), point(10, 1)];
  expect(seriesOf("loss", mixed, { log: true, smoothing: 0.5 }).points.map((one) => one.step)).toEqual([
    10, 20,
  ]);
  expect(stepRate(mixed)).toBe(10);
  expect(stepRate([])).toBeUndefined();
});
