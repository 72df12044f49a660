import { expect, test } from "vitest";
import type { SystemSeries } from "../wire";
import { chartsOf, followed, hasGaps, newestOf, unmetOf } from "./system";

const NONE = "no GPU that NVML knows";
const NAMES = new Map([["b", "10.0.0.8"]]);
const NOT_GIVEN = "this platform does not give it";
const series = (kind: "worker" | "node", id: string, node: string, figures: SystemSeries["figures"], times = [5, 10, 15]): SystemSeries => ({
  kind,
  id,
  node,
  times,
  spans_s: times.map(() => 5),
  figures,
  unmet: { gpu_memory_bytes: NONE, gpu_percent: NONE, memory_bytes: NOT_GIVEN, network_received_bytes_per_s: NOT_GIVEN },
});
const ALL = [
  series("node", "b", "b", { cpu_percent: [50, 60, 70], disk_read_bytes_per_s: [0, 0, 0], disk_written_bytes_per_s: [2e6, 0, 1e6] }),
  series("worker", "w0", "a", { cpu_percent: [90, 91, null], memory_bytes: [2e9, 2e9, 2e9] }),
  series("worker", "w1", "b", { cpu_percent: [10, 11, 12], step_s: [0.002, 0.25, null] }),
  series("worker", "w2", "b", { cpu_percent: [20, 21, 22] }),
];
const chart = (title: string) => chartsOf(ALL, ["a", "b"], NAMES).find((one) => one.title === title);

test("lines have the colours of their nodes, and dashes tell the workers of a node apart", () => {
  expect(chart("CPU of workers")?.lines.map(({ id, look }) => [id, look.colour, look.dash])).toEqual([
    ["w0", 0, 0],
    ["w1", 1, 0],
    ["w2", 1, 1],
  ]);
  expect(chart("CPU of nodes")?.lines.map(({ label, look }) => [label, look.colour])).toEqual([["node 10.0.0.8", 1]]);
});

test("values are in the unit of the highest, and what is missing is no number", () => {
  expect(chart("Memory of workers")).toMatchObject({ unit: "GB" });
  expect([...(chart("Memory of workers")?.lines[0]?.ys ?? [])]).toEqual([2, 2, 2]);
  expect(chart("Disk of nodes")?.unit).toBe("MB/s");
  expect(chart("Disk of nodes")?.lines.map((line) => line.label)).toEqual(["node 10.0.0.8 read", "node 10.0.0.8 written"]);
  expect(chart("CPU of workers")?.lines[0]?.ys[2]).toBeNaN();
  expect(chart("Own time of a step")).toMatchObject({ unit: "ms", lines: [{ id: "w1", ys: Float64Array.from([2, 250, NaN]) }] });
});

test("what was not measured has no chart, and is said with the reason and the node", () => {
  expect(chartsOf(ALL, [], NAMES).map(({ title }) => title)).not.toContain("GPUs of nodes");
  const other = { ...series("node", "a", "a", { cpu_percent: [1, 2, 3] }), unmet: { gpu_percent: NONE, memory_bytes: NOT_GIVEN, disk_read_bytes_per_s: NOT_GIVEN } };
  expect(unmetOf([...ALL, other], NAMES)).toEqual([
    `GPU memory of workers, GPUs of nodes, GPU memory of nodes (${NONE})`,
    `Memory of nodes, Disk of a, Network of nodes (${NOT_GIVEN})`,
  ]);
  expect(unmetOf([], NAMES)).toEqual([]);
});

test("a line is broken where nothing was measured", () => {
  const late = [series("worker", "w0", "a", { cpu_percent: [1, 2, 3] }, [5, 10, 100])];
  expect([hasGaps(ALL), hasGaps(late)]).toEqual([false, true]);
  const [line] = chartsOf(late, [], NAMES)[0]?.lines ?? [];
  expect([[...(line?.xs ?? [])], [...(line?.ys ?? [])]]).toEqual([
    [5, 10, 95, 100],
    [1, 2, NaN, 3],
  ]);
});

test("new samples follow those that are known, each once", () => {
  const known = [series("worker", "w0", "a", { cpu_percent: [1, 2, 3] })];
  const answer = [
    series("worker", "w0", "a", { cpu_percent: [3, 4], memory_bytes: [7, 8] }, [15, 20]),
    series("worker", "w1", "a", { cpu_percent: [9] }, [20]),
  ];
  const [first, second] = followed(known, answer);
  expect(first?.times).toEqual([5, 10, 15, 20]);
  expect(first?.figures).toEqual({ cpu_percent: [1, 2, 3, 4], memory_bytes: [null, null, 7, 8] });
  expect(second?.id).toBe("w1");
  expect(newestOf(followed(known, answer))).toBe(20);
});
