import { expect, test } from "vitest";
import { resizeFault } from "./parts/Actions";
import { safeLink } from "./parts/JobHeader";
import { hasEnded, STATES, workerBounds } from "./wire";

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
