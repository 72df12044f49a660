import { expect, test } from "vitest";
import { parseCompare, formatCompare } from "./compare/state";
import { askedOf, columnsAsked, columnsSaid, listQuery } from "./jobs/asked";
import { listed, listOf } from "./lists";
import { formatRun, parseRun } from "./run/view";

const NAMES = ["loss", "top-1, of classes", 'said "no", twice', '"odd', " of space", "a:b,c"];

test("any name stands in a list and is read back", () => {
  expect(listed(listOf(NAMES))).toEqual(NAMES);
  expect(listOf(["loss", "lr/0"])).toBe("loss,lr/0");
  expect(listOf(["a,b"])).toBe('"a,b"');
});

test("lists of before are read as they were", () => {
  expect(listed(" loss, lr,,loss,")).toEqual(["loss", "lr"]);
  expect(listed('"a, b')).toEqual(['"a', "b"]);
  expect(listed(null)).toEqual([]);
});

test("a metric whose name has a comma stands in the address of a job's page, of a comparison and of the list", () => {
  const name = "top-1, of classes";
  const view = { ...parseRun(""), names: ["loss", name], log: [name], smoothing: { [name]: 0.5 } };
  expect(parseRun(formatRun(view))).toEqual(view);
  const { state } = parseCompare("?jobs=a,b");
  const changed = { ...state, names: [name], log: [name], scatter: [name, "x"] as const };
  expect(parseCompare(formatCompare(changed)).state).toEqual(changed);
  const column = `metric:${name}:last`;
  const asked = askedOf({ columns: columnsSaid(["name", column]) });
  expect(columnsAsked(asked)).toEqual(["name", column]);
  expect(listQuery(asked).metrics).toBe(`"${name}"`);
});
