import { expect, test } from "vitest";
import { merge } from "./feed";

const seqs = (...numbers: number[]) => numbers.map((seq) => ({ seq }));

test("what arrives twice is kept once, in order", () => {
  expect(merge(seqs(1, 2), seqs(2, 4, 3, 3))).toEqual(seqs(1, 2, 3, 4));
});

test("nothing new keeps the very same list, so that nothing is drawn again", () => {
  const known = seqs(1, 2);
  expect(merge(known, seqs(1))).toBe(known);
});

test("beyond the cap the oldest go", () => {
  expect(merge(seqs(1, 2), seqs(3, 4), 3)).toEqual(seqs(2, 3, 4));
});
