import { expect, test } from "vitest";
import type { Worker } from "../wire";
import { FAULTS, mayFault, victims } from "./faults";

const member = (id: string, role: string) => ({ id, role }) as Worker;
const MEMBERS = [member("w0", "worker"), member("w1", "worker"), member("s0", "server")];

function hitBy(name: string): string[] {
  return FAULTS.filter((one) => one.name === name).flatMap((fault) => victims(fault, MEMBERS).map(({ id }) => id));
}

test("a fault hits members of its role, and the supervisor has none to choose", () => {
  expect(hitBy("kill")).toEqual(["w0", "w1"]);
  expect(hitBy("server")).toEqual(["s0"]);
  expect(hitBy("supervisor")).toEqual([]);
});

test("it takes an operator of the project, or of all where the project has no role of its own", () => {
  expect(mayFault({ vision: "operator" }, "vision")).toBe(true);
  expect(mayFault({ "*": "admin" }, "vision")).toBe(true);
  expect(mayFault({ "*": "viewer", vision: "submitter" }, "vision")).toBe(false);
  expect(mayFault({ other: "admin" }, "vision")).toBe(false);
});
