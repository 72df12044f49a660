import { describe, expect, test } from "vitest";
import type { Comparison, JobEvent } from "../wire";
import { distinct, placedOf, saidOf } from "./happened";
import { grown, tailFrom, type JobCurves } from "./reading";
import { formatRun, leftOut, moved, parseRun } from "./view";

const START = Date.parse("2026-11-20T10:00:00Z") / 1000;
const event = (seq: number, type: string, seconds: number, data: Record<string, unknown>, attempt = 1): JobEvent => ({
  seq,
  type,
  at: new Date((START + seconds) * 1000).toISOString(),
  attempt,
  generation: seq,
  data,
});
const EVENTS = [
  event(1, "generation.formed", 1, { members: ["w0", "w1"], step: 0 }),
  event(2, "checkpoint.saved", 5, { step: 50, uri: "x" }),
  event(3, "worker.lost", 6, { worker: "w1", step: 60, cause: "died" }),
  event(4, "recovered", 8, { step: 61, total_s: 2, steps_lost: 0 }),
  event(5, "generation.formed", 20, { members: ["w0"], step: 60 }, 2),
];
const clock = { startedAt: START, batches: { size: 8, schedule: [] } };
const places = (axis: "step" | "rows" | "wall" | "relative") =>
  placedOf(EVENTS, axis, clock, 2).map(({ kind, x, until }) => [kind, x, until]);

describe("what happened", () => {
  test("stands at its step, and a recovery reaches to the step at which training went on", () => {
    expect(places("step")).toEqual([
      ["generation", 0, 0],
      ["checkpoint", 50, 50],
      ["generation", 60, 60],
      ["recovery", 60, 61],
      ["lost", 60, 60],
    ]);
  });

  test("stands at its rows and at its time, where a recovery is as long as it took", () => {
    expect(places("rows")[1]).toEqual(["checkpoint", 400, 400]);
    expect(places("relative").slice(2, 4)).toEqual([
      ["recovery", 6, 8],
      ["lost", 6, 6],
    ]);
    expect(places("wall")[0]).toEqual(["generation", START + 1, START + 1]);
  });

  test("is faint where it is of an earlier attempt, and has words", () => {
    const all = placedOf(EVENTS, "step", clock, 2);
    expect(all.map((one) => one.faint)).toEqual([true, true, false, true, true]);
    expect(all.map(saidOf)).toEqual([
      "Generation 1 from step 0 on",
      "Checkpoint saved at step 50",
      "Generation 5 from step 60 on",
      "Recovered in 2.0 s",
      "Worker w1 lost at step 60: died",
    ]);
  });

  test("has no place by an axis that is not known", () => {
    expect(placedOf(EVENTS, "relative", { startedAt: null, batches: null }, 1)).toEqual([]);
  });

  test("is shown once a pixel and kind", () => {
    const all = placedOf([...EVENTS, event(6, "checkpoint.saved", 5, { step: 51 })], "step", clock, 2);
    expect(distinct(all, [0, 10_000], 100).map((one) => one.kind)).toEqual(["generation", "checkpoint", "generation", "recovery", "lost"]);
  });
});

describe("new points", () => {
  const curve = (name: string, steps: number[]) => ({
    job: "j",
    name,
    steps,
    times: steps.map((step) => START + step),
    values: steps.map((step) => step / 10),
  });
  const answer = (...curves: Comparison["curves"]): Comparison => ({ jobs: [], curves, left_out: [] });
  const known: JobCurves = { wholeAt: 7, curves: new Map([["loss", curve("loss", [1, 50, 90, 100])]]) };

  test("are asked for from a little before the newest one", () => {
    expect(tailFrom(known)).toBe(80);
    expect(tailFrom({ wholeAt: 0, curves: new Map() })).toBe(0);
  });

  test("take the place of what is known from there on", () => {
    const next = grown(known, 80, answer(curve("loss", [90, 100, 101]), curve("accuracy", [101])));
    expect(next.curves.get("loss")?.steps).toEqual([1, 50, 90, 100, 101]);
    expect(next.curves.get("loss")?.values).toEqual([0.1, 5, 9, 10, 10.1]);
    expect(next.curves.get("accuracy")?.steps).toEqual([101]);
    expect(next.wholeAt).toBe(7);
  });

  test("that are none leave everything as it is", () => {
    expect(grown(known, 80, answer(curve("loss", [90, 100])))).toBe(known);
    expect(grown(known, 80, answer())).toBe(known);
  });
});

describe("the address of a job's page", () => {
  test("is empty for the usual charts, and read back as it was written", () => {
    expect(formatRun(parseRun(""))).toBe("");
    const query = "?names=lr,loss&axis=relative&from=1&to=2.5&log=loss&smooth=loss:0.6";
    expect(formatRun(parseRun(query))).toBe(query);
  });

  test("says what of it no page of a run has, and nothing of what is as usual", () => {
    expect(leftOut("?foo=1&chart=nonsense&axis=odd&names=loss&log=lr&from=9&to=2")).toEqual([
      "Left out, because no page of a run has it: foo=1, chart=nonsense, axis=odd, log=lr, from=9, to=2.",
    ]);
    const many = Array.from({ length: 18 }, (_, at) => `m${at}`).join(",");
    expect(leftOut(`?names=${many}`)).toEqual(["Left out: 2 more metrics; at most 16 are shown at once."]);
    expect(leftOut("?names=lr,loss&axis=relative&from=1&to=2.50&log=loss&smooth=loss:0.6")).toEqual([]);
    expect(["", "?axis=step", "?foo="].map(leftOut)).toEqual([[], [], []]);
  });

  test("forgets the scale of a chart that is hidden", () => {
    expect(formatRun({ ...parseRun("?names=lr,loss&log=loss,lr"), names: ["lr"] })).toBe("?names=lr&log=lr");
  });

  test("keeps the order in which charts are arranged", () => {
    expect(moved(["a", "b", "c"], "b", -1)).toEqual(["b", "a", "c"]);
    expect(moved(["a", "b", "c"], "b", 1)).toEqual(["a", "c", "b"]);
    expect(moved(["a", "b", "c"], "c", 1)).toEqual(["a", "b", "c"]);
  });
});
