import { expect, test } from "vitest";
import { ticks } from "./axes";

test("ticks are round, inside the range, and carry no rounding noise", () => {
  expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(ticks(0.03, 0.11, 4)).toEqual([0.04, 0.06, 0.08, 0.1]);
  expect(ticks(0, 0.3, 3)).toEqual([0, 0.1, 0.2, 0.3]);
});
