import { expect, test } from "vitest";
import { csv, fileName } from "./save";

test("a CSV quotes what it must, and no cell is a formula", () => {
  expect(csv([["run", "loss"], ['a,"b"', 0.5], ["=HYPERLINK(1)", NaN], ["<b>", -1]])).toBe(
    'run,loss\r\n"a,""b""",0.5\r\n\'=HYPERLINK(1),\r\n<b>,-1\r\n',
  );
});

test("a file's name holds no path", () => {
  expect(["loss/0", "../../x", "<script>", "  "].map(fileName)).toEqual(["loss-0", "x", "script", "chart"]);
});
