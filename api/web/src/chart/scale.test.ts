import { describe, expect, test } from "vitest";
import { linear, linePath, log, logTicks, nearest, runs, smooth, spread, ticks, wholeTicks } from "./scale";

const points = (...pairs: [number, number][]) => pairs.map(([step, value]) => ({ step, value }));

describe("scales", () => {
  test("a linear scale maps the ends to the ends and back", () => {
    const scale = linear([10, 20], [100, 300]);
    expect([scale.at(10), scale.at(15), scale.at(20)]).toEqual([100, 200, 300]);
    expect(scale.back(250)).toBe(17.5);
  });

  test("a domain without width still gives finite pixels", () => {
    expect(linear([5, 5], [0, 100]).at(5)).toBe(0);
  });

  test("a log scale puts equal factors at equal distances", () => {
    const scale = log([0.01, 100], [0, 400]);
    expect(scale.at(1) - scale.at(0.1)).toBeCloseTo(100);
    expect(scale.back(scale.at(3))).toBeCloseTo(3);
  });
});

describe("ticks", () => {
  test("are round and inside the domain", () => {
    expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(ticks(0.03, 0.11, 4)).toEqual([0.04, 0.06, 0.08, 0.1]);
  });

  test("carry no rounding noise", () => {
    expect(ticks(0, 0.3, 3)).toEqual([0, 0.1, 0.2, 0.3]);
  });

  test("of steps and workers are whole", () => {
    expect(wholeTicks(0, 3.24, 4)).toEqual([0, 1, 2, 3]);
    expect(wholeTicks(1, 920, 4)).toEqual([250, 500, 750]);
    expect(wholeTicks(0, 10, 4).every(Number.isInteger)).toBe(true);
  });

  test("of a log axis are powers of ten where the domain is long", () => {
    expect(logTicks(0.001, 1000)).toEqual([0.001, 0.01, 0.1, 1, 10, 100, 1000]);
    expect(logTicks(1, 10)).toEqual([1, 2, 3, 5, 10]);
  });
});

describe("the spread of values", () => {
  test("leaves air, and starts at zero where asked", () => {
    const [low, high] = spread([10, 20]);
    expect(low).toBeLessThan(10);
    expect(high).toBeGreaterThan(20);
    expect(spread([10, 20], { zero: true })[0]).toBe(0);
  });

  test("ignores what cannot be drawn", () => {
    expect(spread([NaN, Infinity])).toEqual([0, 1]);
    expect(spread([-1, 0, 10], { log: true })).toEqual([5, 20]);
  });
});

describe("smoothing", () => {
  test("leaves a constant as it is from its first point on", () => {
    expect(
      smooth(points([1, 4], [2, 4], [3, 4]), 0.9).map((point) => Math.round(point.value * 1e9) / 1e9),
    ).toEqual([4, 4, 4]);
  });

  test("draws a jump out over several points", () => {
    const [, second] = smooth(points([1, 0], [2, 1]), 0.5);
    expect(second?.value).toBeCloseTo(2 / 3);
  });
});

describe("lines", () => {
  const x = linear([0, 10], [0, 100]);
  const y = linear([0, 10], [100, 0]);

  test("break where a value cannot be drawn", () => {
    expect(linePath(points([0, 0], [1, NaN], [2, 5], [3, 5]), x, y)).toBe("M0,100M20,50L30,50");
  });

  test("of world sizes go in stairs", () => {
    expect(linePath(points([0, 3], [5, 2]), x, y, "stairs")).toBe("M0,70H50V80");
  });

  test("of a second attempt start anew", () => {
    expect(runs(points([1, 1], [2, 1], [1, 1])).map((run) => run.length)).toEqual([2, 1]);
  });
});

test("the nearest point wins on either side", () => {
  const line = points([10, 1], [20, 2], [30, 3]);
  expect([0, 14, 16, 99].map((step) => nearest(line, step)?.value)).toEqual([1, 1, 2, 3]);
  expect(nearest(line.slice(3), 5)).toBeUndefined();
});
