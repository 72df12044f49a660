import { describe, expect, test } from "vitest";
import type { Recovery } from "../history";
import { asked, rowsAt } from "../plot/curves";
import { bounds, parallelPlaces } from "../plot/paint";
import type { Comparison, Job } from "../wire";
import { differences } from "./differences";
import { dimensionsOf, mostAxes } from "./dimensions";
import { deltaWords, finalsOf, valueWords } from "./finals";
import { notesOf } from "./Notes";
import { linesOf, runsOf } from "./runs";
import { parseCompare } from "./state";
import { stripsOf } from "./strips";

const job = (id: string, name: string, started: string | null = "2026-11-20T10:00:00Z") =>
  ({ id, name, project: "p", state: "running", started_at: started }) as const;
const START = Date.parse("2026-11-20T10:00:00Z") / 1000;
const answer: Comparison = {
  jobs: [job("job_aaaaa", "x"), job("job_bbbbb", "x"), job("job_c", "<img src=x>", null)],
  curves: [
    { job: "job_aaaaa", name: "loss", steps: [1, 2], times: [START + 1, START + 2], values: [1, null] },
    { job: "job_bbbbb", name: "loss", steps: [1, 2], times: [START + 3, START + 2], values: [3, 2] },
    { job: "job_c", name: "loss", steps: [1], times: [START], values: [0] },
  ],
  left_out: [],
};
const files = new Map([["job_aaaaa", { spec: { batch: { global_size: 32 } } } as unknown as Job]]);
const runs = runsOf(answer);

describe("runs", () => {
  test("of one name are told apart by their ids, and a name that is markup stays text", () => {
    expect(runs.map((run) => run.label)).toEqual(["x (aaaaa)", "x (bbbbb)", "<img src=x>"]);
  });

  test("have lines by step, with a gap for what is not a number", () => {
    const [first] = linesOf(answer, "loss", runs, "step", files);
    expect([[...(first?.xs ?? [])], [...(first?.ys ?? [])]]).toEqual([[1, 2], [1, NaN]]);
  });

  test("have lines in order of time, whatever the order of steps", () => {
    const second = linesOf(answer, "loss", runs, "relative", files)[1];
    expect([[...(second?.xs ?? [])], [...(second?.ys ?? [])]]).toEqual([[2, 3], [2, 3]]);
  });

  test("without a start have no relative time, without a batch size no rows", () => {
    expect(linesOf(answer, "loss", runs, "relative", files)).toHaveLength(2);
    expect(linesOf(answer, "loss", runs, "rows", files).map((line) => [line.id, ...line.xs])).toEqual([["job_aaaaa", 32, 64]]);
  });

  test("without the metric have no line", () => {
    expect(linesOf(answer, "no such metric", runs, "step", files)).toEqual([]);
  });
});

test("rows follow the schedule of the batch", () => {
  const batches = { size: 64, schedule: [[500, 128], [2000, 256]] as const };
  expect([0, 10, 500, 501, 2000, 2001].map((step) => rowsAt(step, batches))).toEqual([
    0, 640, 32_000, 32_128, 224_000, 224_256,
  ]);
});

test("a stretch of rows is asked for in steps, wide enough for every batch size", () => {
  expect(asked("rows", [100, 900], [32, 8])).toEqual({ axis: "step", from: 3, to: 113 });
  expect(asked("rows", [100, 900], [])).toEqual({ axis: "step", from: 0, to: 0 });
  expect(asked("wall", [1, 2], [])).toEqual({ axis: "wall", from: 1, to: 2 });
});

test("job files are compared by key, and what is equal is left away", () => {
  const one = { name: "a", workers: { min: 1, max: 2 }, params: { lr: 0.1 }, tags: [1] };
  const other = { name: "b", workers: { min: 1, max: 4 }, params: {}, tags: [1] };
  expect(differences([one, other])).toEqual([
    { path: "params.lr", values: ["0.1", undefined] },
    { path: "workers.max", values: ["2", "4"] },
  ]);
  expect(differences([one])).toEqual([]);
});

test("what a shared link asks for and does not get is said", () => {
  const { state } = parseCompare("?jobs=a&names=loss,nothing&axis=relative&baseline=gone");
  const notes = notesOf({ state, surplus: { jobs: 3, names: 0 }, ignored: ["zzz=1"] }, { ...answer, left_out: ["<b>x</b>"] }, files);
  expect(notes).toEqual([
    "Left out, because they do not exist or you may not see them: <b>x</b>.",
    "Left out: 3 more jobs; at most 100 are compared at once.",
    "Left out, because no comparison has it: zzz=1.",
    "None of these runs has a value of nothing yet.",
    "The baseline gone is not among the runs.",
    "2 job files could not be read.",
    "Not drawn, because not started: 1 run.",
  ]);
  const { state: good } = parseCompare("?jobs=job_aaaaa");
  const one = { ...answer, jobs: answer.jobs.slice(0, 1) };
  expect(notesOf({ state: good, surplus: { jobs: 0, names: 0 }, ignored: [] }, one, files)).toEqual([]);
});

describe("final values", () => {
  test("are the last ones, and one that is not a number is said", () => {
    const finals = finalsOf(answer);
    expect(finals.get("job_bbbbb")).toEqual({ loss: 2 });
    expect(valueWords(finals.get("job_aaaaa")?.loss)).toBe("not a number");
    expect(valueWords(finals.get("nobody")?.loss)).toBe("–");
  });

  test("are compared with the baseline's", () => {
    expect([deltaWords(1.1, 1), deltaWords(0.5, 1), deltaWords(1, 1), deltaWords(1, 0)]).toEqual([
      "+0.1 (+10.0 %)",
      "−0.5 (−50.0 %)",
      "±0",
      "+1",
    ]);
    expect([deltaWords(NaN, 1), deltaWords(1, undefined)]).toEqual(["", ""]);
  });
});

test("as many axes are drawn as there is room for", () => {
  expect([1232, 600, 336, 100].map(mostAxes)).toEqual([8, 7, 4, 3]);
});

test("what runs differ in becomes axes of numbers or of words", () => {
  const different = differences([
    { params: { lr: 0.1, opt: "sgd", same: 1 }, seed: 1, alerts: [] },
    { params: { lr: 0.2, opt: "adam", same: 1 } },
    { params: { opt: "sgd", same: 1 }, seed: 2, alerts: [{}] },
  ]);
  const [seed, opt, lr, loss] = dimensionsOf(["job_aaaaa", "job_bbbbb", "job_c"], different, ["loss"], finalsOf(answer));
  expect(seed?.label).toBe("seed");
  expect(lr).toEqual({ label: "params.lr", log: false, values: [0.1, 0.2, null], words: null });
  expect(opt).toEqual({ label: "params.opt", log: false, values: [0, 1, 0], words: ["sgd", "adam"] });
  expect(loss && bounds(loss)).toEqual([0, 2]);
});

test("a key whose values lie a hundredfold apart has a logarithmic axis, a metric never", () => {
  const values = (...each: unknown[]) => each.map((value) => JSON.stringify(value));
  const different = [
    { path: "params.far", values: values(0.001, 0.1, 0.01) },
    { path: "params.near", values: values(0.1, 9, 1) },
    { path: "params.zero", values: values(0, 100, 1) },
  ];
  const finals = new Map([["a", { loss: 0.001 }], ["b", { loss: 9 }], ["c", { loss: 1 }]]);
  const axes = dimensionsOf(["a", "b", "c"], different, ["loss"], finals);
  expect(axes.map(({ label, log }) => [label, log])).toEqual([
    ["params.far", true], ["params.near", false], ["params.zero", false], ["loss", false],
  ]);
  const picture = { width: 1000, height: 52 + 100, looks: [0, 1, 2].map(() => ({ colour: 0, dash: 0 })), highlight: null };
  // 34 px from the top lies the highest, 18 px above the foot the lowest: the middle one between them.
  expect(parallelPlaces(axes, picture).map((places) => Math.round(places[0]?.[1] ?? NaN))).toEqual([134, 34, 84]);
});

test("strips follow the axis, with recoveries where they were", () => {
  const world = { job: "job_aaaaa", name: "world_size", steps: [1, 5], times: [START + 1, START + 5], values: [3, 2] };
  const recovery = { step: 5, at: "2026-11-20T10:00:04Z" } as Recovery;
  const of = (axis: "step" | "relative") =>
    stripsOf({ ...answer, curves: [world] }, runs, axis, files, new Map([["job_aaaaa", [recovery]]]));
  expect(of("step").map(({ id, xs, sizes, recoveries }) => [id, [...xs], [...sizes], recoveries])).toEqual([
    ["job_aaaaa", [1, 5], [3, 2], [5]],
  ]);
  expect(of("relative")[0]?.recoveries).toEqual([4]);
});
