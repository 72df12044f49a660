import { describe, expect, test } from "vitest";
import { belowLog, nearestIndex, keyed, nearestRuns, raised, smoothed, xRange, yRange, type Line } from "./lines";

const line = (id: string, xs: number[], ys: number[]): Line => ({
  id,
  label: id,
  look: { colour: 0, dash: 0 },
  xs: Float64Array.from(xs),
  ys: Float64Array.from(ys),
});
const same = (value: number) => value;

describe("ranges", () => {
  test("hold every point and nothing that is not a number", () => {
    const lines = [line("a", [0, 1, 2], [1, NaN, 3]), line("b", [5, 6], [Infinity, 2])];
    expect(xRange(lines)).toEqual([0, 6]);
    expect(yRange(lines, [0, 6], false)).toEqual([1 - 0.12, 3 + 0.12]);
  });

  test("are those of the stretch", () => {
    expect(yRange([line("a", [0, 1, 2, 3], [90, 1, 1, 90])], [1, 2], false)).toEqual([0.94, 1.06]);
  });

  test("do not exist without points", () => {
    expect(xRange([line("a", [], [])])).toBeNull();
    expect(yRange([line("a", [0, 1], [NaN, NaN])], [0, 1], false)).toBeNull();
    expect(yRange([line("a", [0, 1], [0, -1])], [0, 1], true)).toBeNull();
  });

  test("leave room below for strips", () => {
    expect(raised([0, 8], 0.2, false)).toEqual([-2, 8]);
    expect(raised([1, 10_000], 0.2, true)).toEqual([0.1, 10_000]);
  });

  test("of a single point are wider than it", () => {
    expect(xRange([line("a", [4], [1])])).toEqual([3.5, 4.5]);
  });

  test("on a logarithmic scale leave away what it cannot show, and count it", () => {
    const lines = [line("a", [0, 1, 2], [0, 1, 100])];
    expect(yRange(lines, [0, 2], true)?.[0]).toBeCloseTo(0.9);
    expect(belowLog(lines)).toBe(1);
  });
});

describe("smoothing", () => {
  test("has no pull towards zero, and values that are not numbers do not spread", () => {
    expect([...smoothed(Float64Array.from([2, NaN, 2]), 0.9)]).toEqual([2, NaN, 2]);
  });

  test("of weight 0 changes nothing", () => {
    const ys = Float64Array.from([1, 5]);
    expect(smoothed(ys, 0)).toBe(ys);
  });
});

describe("the cursor", () => {
  test("finds the nearest point", () => {
    expect([-5, 1.4, 1.6, 9].map((x) => nearestIndex(Float64Array.from([0, 1, 2]), x))).toEqual([0, 1, 2, 2]);
  });

  test("names the runs nearest to it first, and none that has no value there", () => {
    const lines = [
      line("far", [0, 1, 2], [9, 9, 9]),
      line("near", [0, 1, 2], [3, 3, 3]),
      line("ended", [0, 0.1], [3, 3]),
      line("nan", [0, 1, 2], [NaN, NaN, NaN]),
    ];
    expect(nearestRuns(lines, 2, 4, same, 5).map((one) => one.line.id)).toEqual(["near", "far"]);
    expect(nearestRuns(lines, 2, 4, same, 1)).toHaveLength(1);
  });

  test("moves by keys: along the points, to the ends, and to the next run up or down", () => {
    const lines = [line("low", [0, 1, 2], [1, 1, 1]), line("high", [0, 1, 2], [9, 8, 7])];
    const near = nearestRuns(lines, 1, 2, same, Infinity);
    const to = (key: string) => keyed(key, near, [0, 2], same);
    expect(["ArrowLeft", "ArrowRight", "Home", "End"].map((key) => to(key)?.x)).toEqual([0, 2, 0, 2]);
    expect([to("ArrowDown"), to("ArrowUp"), to("x")]).toEqual([{ x: 1, top: 8 }, null, null]);
    expect(keyed("ArrowRight", [], [0, 2], same)).toBeNull();
  });
});

test("a range from zero reaches down to it, and below only where values do", () => {
  expect(yRange([line("a", [0, 1], [3, 4])], [0, 1], false, true)).toEqual([0, 4.32]);
  expect(yRange([line("a", [0, 1], [-1, 1])], [0, 1], false, true)).toEqual([-1.12, 1.12]);
});
