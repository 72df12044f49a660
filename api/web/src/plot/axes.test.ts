import { expect, test } from "vitest";
import { logTicks, ticks } from "./axes";

test("ticks are round, inside the range, and carry no rounding noise", () => {
  expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(ticks(0.03, 0.11, 4)).toEqual([0.04, 0.06, 0.08, 0.1]);
  expect(ticks(0, 0.3, 3)).toEqual([0, 0.1, 0.2, 0.3]);
});

test("a logarithmic axis has powers of ten, and multiples of these where it has fewer than two", () => {
  expect(logTicks(0.0018, 0.52, 5)).toEqual([0.01, 0.1]);
  expect(logTicks(1e-5, 1, 3)).toEqual([1e-5, 0.001, 0.1]);
  expect(logTicks(0.1, 0.9, 5)).toEqual([0.1, 0.2, 0.5]);
  expect(logTicks(0.3, 0.3, 5)).toEqual([]);
});
