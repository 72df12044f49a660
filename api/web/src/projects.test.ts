import { expect, test } from "vitest";
import { limitOf, holds, type Project } from "./projects";

const PROJECT: Project = {
  name: "vision",
  role: "viewer",
  created_at: "2026-11-20T12:00:00Z",
  weight: 1,
  quota: { workers: 8, cpus: null, gpus: 0 },
  held: { workers: 3, cpus: 1.5, gpus: 0, jobs: 1, waiting: 2 },
};

test("what is held stands beside its limit, alone where there is none", () => {
  expect((["workers", "cpus", "gpus"] as const).map((kind) => holds(PROJECT, kind))).toEqual([
    "3 of 8",
    "1.5",
    "0 of 0",
  ]);
});

test("an empty field is no limit, and nonsense is refused", () => {
  expect(limitOf(" ")).toEqual({ limit: null });
  expect(limitOf("0")).toEqual({ limit: 0 });
  expect(limitOf("2.5")).toEqual({ limit: 2.5 });
  expect([limitOf("-1"), limitOf("many"), limitOf("1e999")]).toEqual([null, null, null]);
});
