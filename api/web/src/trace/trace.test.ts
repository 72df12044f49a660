import { expect, test } from "vitest";
import { rowsOf, sumsOf, wholeOf, within } from "./trace";

const span = (name: string, tid: number, ts: number, dur: number, args = {}) => ({ name, ph: "X", pid: 1, tid, ts, dur, args });
const TEXT = JSON.stringify({
  traceEvents: [
    { name: "process_name", ph: "M", pid: 1, tid: 0, args: { name: "w0" } },
    { name: "thread_name", ph: "M", pid: 1, tid: 0, args: { name: "training" } },
    { name: "thread_name", ph: "M", pid: 1, tid: 1, args: { name: "buckets" } },
    span("forward", 0, 10, 20),
    span("step 1", 0, 0, 100),
    span("exposed", 0, 40, 50),
    span("step 2", 0, 100, 50),
    span("exposed", 0, 120, 10),
    span("reduce", 1, 30, 60),
  ],
});
const rows = rowsOf(TEXT);

test("a span inside of another is a row below it, and each thread has rows of its own", () => {
  expect(rows.map(({ thread, depth, spans }) => [thread, depth, spans.map(({ name }) => name)])).toEqual([
    ["w0 training", 0, ["step 1", "step 2"]],
    ["w0 training", 1, ["forward", "exposed", "exposed"]],
    ["w0 buckets", 0, ["reduce"]],
  ]);
  expect(wholeOf(rows)).toEqual([0, 150]);
});

test("a stretch has the spans that reach into it, and sums what lies in it", () => {
  expect(rows[1] && within(rows[1], [30, 125]).map(({ name }) => name)).toEqual(["exposed", "exposed"]);
  expect(sumsOf(rows, [0, 150]).map(({ name, count, us }) => [name, count, us])).toEqual([
    ["step", 2, 150],
    ["exposed", 2, 60],
    ["reduce", 1, 60],
    ["forward", 1, 20],
  ]);
  expect(sumsOf(rows, [50, 125]).find(({ name }) => name === "exposed")?.us).toBe(45);
});
