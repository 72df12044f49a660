import { expect, test } from "vitest";
import { placed } from "./picture";

test("a legend has each entry once, in rows that fit", () => {
  const keys = ["aa", "bbbb", "c", "d".repeat(90)].map((label) => ({ label, colour: "#000" }));
  const rows = placed(keys, 100, (text) => 10 * text.length);
  expect(rows.map((row) => row.map(({ key, left }) => [key.label[0], left]))).toEqual([[["a", 0]], [["b", 0]], [["c", 0]], [["d", 0]]]);
  expect(placed(keys.slice(0, 3), 500, (text) => text.length)[0]?.map(({ left }) => left)).toEqual([0, 46, 94]);
  expect(placed([], 100, () => 0)).toEqual([]);
});
