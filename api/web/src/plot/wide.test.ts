import { expect, test } from "vitest";
import type { Line } from "./lines";
import { csv } from "./save";
import { wide, xHead } from "./wide";

const line = (label: string, xs: number[], ys: number[]): Line => ({
  id: label,
  label,
  look: { colour: 0, dash: 0 },
  xs: Float64Array.from(xs),
  ys: Float64Array.from(ys),
});

test("runs are columns, and a step that one of them lacks is an empty cell", () => {
  const lines = [line("a", [1, 2, 4], [0.5, NaN, 0.25]), line("=1+1", [2, 3], [1e-7, 7])];
  expect(csv(wide(lines, "step", null))).toBe("step,a,'=1+1\r\n1,0.5,\r\n2,,1e-7\r\n3,,7\r\n4,0.25,\r\n");
});

test("only the stretch that is shown is written", () => {
  expect(wide([line("a", [1, 2, 3, 4], [1, 2, 3, 4])], "step", [2, 3])).toEqual([
    ["step", "a"],
    [2, 2],
    [3, 3],
  ]);
});

test("two values of one moment are two rows", () => {
  const lines = [line("a", [5, 5, 6], [1, 2, 3]), line("b", [5], [9])];
  expect(wide(lines, "t", null)).toEqual([
    ["t", "a", "b"],
    [5, 1, 9],
    [5, 2, NaN],
    [6, 3, NaN],
  ]);
});

test("the head says the unit of times", () => {
  expect(xHead({ unit: "count", label: "Step" })).toBe("step");
  expect(xHead({ unit: "time", label: "Time" })).toBe("time (Unix seconds)");
  expect(xHead({ unit: "duration", label: "Time since the start" })).toBe("time since the start (seconds)");
});
