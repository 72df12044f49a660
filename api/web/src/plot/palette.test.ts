import { describe, expect, test } from "vitest";
import css from "../styles/plot.css?raw";
import { COLOURS, DASHES, lookOf } from "./palette";

const all = [...css.matchAll(/--run-\d: (#[0-9a-f]{6})/g)].map((found) => found[1] ?? "");
const [light, dark] = [all.slice(0, COLOURS), all.slice(COLOURS)];

type Rgb = [number, number, number];

/** Linear light of each part. */
function linear(colour: string): Rgb {
  const part = (at: number): number => {
    const share = parseInt(colour.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return [part(1), part(3), part(5)];
}

function luminance([red, green, blue]: Rgb): number {
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** By WCAG 2.2. */
function contrast(one: string, other: string): number {
  const [low = 0, high = 0] = [luminance(linear(one)), luminance(linear(other))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** As seen without red, green or blue cones: Machado, Oliveira and Fernandes 2009, severity 1. */
const BLIND: Record<string, number[][]> = {
  protan: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deutan: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritan: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

/** Oklab (Ottosson 2020), in which distances are as they are seen. */
function lab([red, green, blue]: Rgb): Rgb {
  const l = Math.cbrt(Math.max(0, 0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue));
  const m = Math.cbrt(Math.max(0, 0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue));
  const s = Math.cbrt(Math.max(0, 0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue));
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function seen(colour: string, matrix: number[][]): Rgb {
  const from = linear(colour);
  const to = matrix.map((row) => row.reduce((sum, weight, at) => sum + weight * (from[at] ?? 0), 0));
  return lab([to[0] ?? 0, to[1] ?? 0, to[2] ?? 0]);
}

function distance(one: Rgb, other: Rgb): number {
  return Math.hypot(...one.map((part, axis) => part - (other[axis] ?? 0)));
}

describe.each([
  ["light", light, "#ffffff"],
  ["dark", dark, "#161a20"],
] as const)("the colours of runs on %s", (_, colours, ground) => {
  test("stand out from the ground, as WCAG asks of graphics", () => {
    expect(colours).toHaveLength(COLOURS);
    for (const colour of colours) expect(contrast(colour, ground)).toBeGreaterThan(3);
  });

  test.each(Object.keys(BLIND))("differ for %s readers", (kind) => {
    const points = colours.map((colour) => seen(colour, BLIND[kind] ?? []));
    const apart = points.flatMap((one, at) => points.slice(at + 1).map((other) => distance(one, other)));
    // Five times what an eye just tells apart side by side.
    expect(Math.min(...apart)).toBeGreaterThan(0.1);
  });
});

test("so many runs have a look of their own", () => {
  const looks = Array.from({ length: COLOURS * DASHES.length }, (_, at) => JSON.stringify(lookOf(at)));
  expect(new Set(looks).size).toBe(24);
});
