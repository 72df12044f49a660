import { expect, test } from "vitest";
import document from "../../../openapi.json";
import { completed, keysAt, partAt, placeOf, saidIn, siblings, told, valuesAt, type Schemas } from "./schema";

const schemas = document.components.schemas as unknown as Schemas;
const lines = ["name: a", "workers:", "  min: 1", "  ", "sync:", "  intra_node: ring", "params:", "  - x: 1"];

test("a line stands below the nearest lines above that are indented less", () => {
  expect(placeOf(lines, 0)).toEqual({ path: [], key: "name" });
  expect(placeOf(lines, 3)).toEqual({ path: ["workers"], key: null });
  expect(placeOf(lines, 5)).toEqual({ path: ["sync"], key: "intra_node" });
  expect(placeOf(["a:", "  b:", "    c:", "", "      d"], 4).path).toEqual(["a", "b", "c"]);
  expect(placeOf([], 0)).toEqual({ path: [], key: null });
});

test("what is chosen takes the place of what the line had, at its margin", () => {
  expect(completed("precision: fp", "bf16")).toBe("precision: bf16");
  expect(completed("  placement:", "spread")).toBe("  placement: spread");
  expect(completed("  mi", null, "min")).toBe("  min: ");
  expect(completed("  - na", null, "name")).toBe("  - name: ");
  expect(completed("", null, "sync")).toBe("sync: ");
});

test("keys that stand beside a line are known, and none of another place", () => {
  expect([...siblings(lines, 3)]).toEqual(["min"]);
  expect([...siblings(["name: a", "", "sync:", "  name: b"], 1)]).toEqual(["name", "sync"]);
});

test("the API's own schema says which keys and values there are", () => {
  expect(keysAt(schemas, []).map((one) => one.key)).toContain("entrypoint");
  expect(keysAt(schemas, ["workers"]).map((one) => one.key)).toEqual(expect.arrayContaining(["min", "max", "gpus"]));
  expect(keysAt(schemas, []).map((one) => one.key)).not.toContain("framework_why");
  expect(keysAt(schemas, ["name"])).toEqual([]);
  expect(keysAt(schemas, ["nothing", "below"])).toEqual([]);
  expect(valuesAt(schemas, ["precision"])).toEqual(["fp32", "bf16", "fp16"]);
  expect(valuesAt(schemas, ["debug", "faults"])).toEqual(["true", "false"]);
  expect(valuesAt(schemas, ["name"])).toEqual([]);
});

test("a key is told with its type, its bounds and its default", () => {
  const words = (path: string[]): string => told(schemas, partAt(schemas, path) ?? {});
  expect(words(["workers", "min"])).toBe("integer; from 1 to 4096; default: 1");
  expect(words(["workers"])).toContain("The number of workers");
  expect(words(["precision"])).toContain('fp32, bf16, fp16; default: "fp32"');
});

test("of a job file that has all keys those stay whose values are not the defaults", () => {
  const defaults = Object.entries(schemas.JobSpec?.properties ?? {}).flatMap(([key, part]) => ("default" in part ? [[key, part.default] as const] : []));
  const full = { ...Object.fromEntries(defaults), name: "a", entrypoint: "m:f" };
  expect(saidIn(schemas, full)).toEqual({ name: "a", entrypoint: "m:f" });
  const workers = { ...(schemas.JobSpec?.properties?.workers?.default as object), max: 3 };
  const said = { params: { lr: 0.1, seed: 0 }, labels: {}, alerts: [{ name: "x" }], later: { a: null }, seed: 7 };
  expect(saidIn(schemas, { ...full, workers, ...said })).toEqual({
    name: "a", entrypoint: "m:f", workers: { max: 3 }, params: said.params, alerts: said.alerts, later: said.later, seed: 7,
  });
});
