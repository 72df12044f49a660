import { expect, test } from "vitest";
import { days, gapsIn, linesOf, partsOf, resources, rowsOf, tonesOf } from "./usage";
import type { History, OccupiedNode } from "./wire";

const minute = (at: number): string => new Date(Date.UTC(2026, 10, 26, 23, 58 + at)).toISOString();
const history = (minutes: readonly number[]): History => ({
  at: minutes.map(minute),
  nodes: minutes.map(() => 1),
  cpus: minutes.map(() => 4),
  gpus: minutes.map(() => 0),
  held_cpus: minutes.map((at) => at),
  held_gpus: minutes.map(() => 0),
  jobs: minutes.map(() => 1),
  waiting: minutes.map(() => 0),
});

const node = (id: string, jobs: [string | null, number][]): OccupiedNode => ({
  ...{ id, address: "", cpus: 4, gpus: 0, memory_gb: 8, others: { cpus: 1, gpus: 0, memory_gb: 0 } },
  jobs: jobs.map(([job, cpus]) => ({
    ...{ job, name: job, project: job && "p", places: cpus, servers: 0, members: [], cpus, gpus: 0, memory_gb: 0 },
  })),
});

test("a job has the same tone on every node, and one that may not be read has no name", () => {
  const nodes = [node("n1", [["a", 1], ["b", 1]]), node("n2", [["b", 2], [null, 1]])];
  const tones = tonesOf(nodes);
  const parts = nodes.map((one) => partsOf(one, "cpus", tones).map(({ name, amount, tone }) => `${name} ${amount} ${tone}`));
  expect(parts).toEqual([
    ["a 1 0", "b 1 1", "other workloads 1 null"],
    ["b 2 1", "another project's job 1 4", "other workloads 1 null"],
  ]);
  expect(partsOf(node("n", [["a", 1]]), "gpus", tones)).toEqual([]);
  expect(resources(node("n", []))).toBe("4\u00a0CPUs, 8\u00a0GB");
  expect(nodes[0]?.jobs.map(resources)).toEqual(["1\u00a0CPU", "1\u00a0CPU"]);
});

test("minutes that nobody saw are a gap, and count neither as held nor as idle", () => {
  const told = history([0, 1, 2, 9]);
  expect(gapsIn(told.at)).toEqual([false, false, false, true]);
  const [cpus, ...others] = linesOf(told);
  const first = Date.parse(minute(0)) / 1000;
  expect([...(cpus?.xs ?? [])].map((x) => (x - first) / 60)).toEqual([0, 1, 2, 9, 9]);
  expect([...(cpus?.ys ?? [])]).toEqual([0, 25, 50, NaN, 225]);
  expect(others).toEqual([]);
  expect(days(told).map((day) => [day.day, day.minutes, day.held_cpu_h * 60, day.idle_cpu_h * 60])).toEqual([
    ["2026-11-27", 2, 11, 2],
    ["2026-11-26", 2, 1, 7],
  ]);
  expect(days(history([]))).toEqual([]);
});

test("the file has a row for each minute", () => {
  const rows = rowsOf(history([0, 1]));
  expect(rows[0]).toEqual(["at", "nodes", "cpus", "gpus", "held_cpus", "held_gpus", "jobs", "waiting"]);
  expect(rows[2]).toEqual([minute(1), 1, 4, 0, 1, 0, 1, 0]);
});
