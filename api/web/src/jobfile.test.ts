import { describe, expect, test } from "vitest";
import example from "../../../jobs/ringleader_jobs/digits.yaml?raw";
import { lineOf, needsUpload, read, valueAt, withValue } from "./jobfile";

const FILE = "# ours\nname: digits\nworkers: {min: 2, max: 3}\nbatch:\n  global_size: 64 # rows\n";

describe("a job file", () => {
  test("may be YAML or JSON", () => {
    expect(read(FILE).spec).toMatchObject({ name: "digits", workers: { min: 2, max: 3 } });
    expect(read('{"name": "digits"}').spec).toEqual({ name: "digits" });
  });

  test("that cannot be read says where", () => {
    expect(read("name: digits\nworkers: {min: 2\n").fault?.line).toBeGreaterThanOrEqual(2);
    expect(read("just words").fault?.line).toBe(1);
    expect(read("").spec).toBeNull();
  });

  test("keeps its comments when a field changes a value", () => {
    const text = withValue(withValue(FILE, ["workers", "max"], 4), ["project"], "vision");
    expect(text).toContain("# ours");
    expect(text).toContain("# rows");
    expect(read(text).spec).toMatchObject({ workers: { min: 2, max: 4 }, project: "vision" });
  });

  test("that cannot be read is left as it is", () => {
    expect(withValue("a: {", ["a"], 1)).toBe("a: {");
  });

  test("of the example can be sent from the page as it is", () => {
    expect(needsUpload(read(example).spec)).toBe(false);
    expect(valueAt(read(example).spec, ["workers", "max"])).toBe(3);
  });
});

describe("a pointer", () => {
  test("finds the line of its key", () => {
    expect(lineOf(FILE, "/batch/global_size")).toBe(5);
    expect(lineOf(FILE, "/workers/min")).toBe(3);
  });

  test("to a missing key finds the part it is missing from, or nothing", () => {
    expect(lineOf(FILE, "/batch/logical_shards")).toBe(4);
    expect(lineOf(FILE, "/entrypoint")).toBeNull();
  });

  test("may hold escaped slashes", () => {
    expect(lineOf('"a/b": 1\n"c~d": 2\n', "/c~0d")).toBe(2);
  });
});

test("only a folder needs an upload", () => {
  expect([
    needsUpload({ working_dir: "." }),
    needsUpload({ working_dir: `sha256:${"0".repeat(64)}` }),
    needsUpload({}),
  ]).toEqual([true, false, false]);
});
