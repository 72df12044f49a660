import { describe, expect, test } from "vitest";
import type { JobEvent, LogLine } from "../wire";
import { ALL, asText, beginningsOf, pieces, wantedOf, windowOf } from "./lines";

const at = (second: number) => `2026-11-20T10:00:${String(second).padStart(2, "0")}Z`;
const line = (seq: number, worker: string, text: string, level = "info"): LogLine => ({ seq, at: at(seq), worker, level, line: text });
const LINES = [line(1, "w0", "Loading"), line(2, "w1", "Error: a.b", "error"), line(3, "w0", "loading again"), line(4, "w1", "error", "error")];
const BEGINNINGS = beginningsOf([
  { attempt: 0, at: at(0) },
  { attempt: 1, at: at(1) },
  { attempt: 1, at: at(2) },
  { attempt: 2, at: at(3) },
] as JobEvent[]);

describe("log lines", () => {
  const seqs = (wanted: object) => wantedOf(LINES, { ...ALL, ...wanted }, BEGINNINGS).map((one) => one.seq);

  test("are filtered by worker, level, text in any case, and by the attempt that had begun", () => {
    expect([seqs({}), seqs({ worker: "w1" }), seqs({ level: "error" }), seqs({ text: "LOAD" })]).toEqual([[1, 2, 3, 4], [2, 4], [2, 4], [1, 3]]);
    expect([seqs({ attempt: "1" }), seqs({ attempt: "2" }), seqs({ text: "a.b" }), seqs({ text: "axb" })]).toEqual([[1, 2], [3, 4], [2], []]);
  });

  test("are shown from the newest back, or around one of them", () => {
    expect(windowOf(LINES, null, 2).map((one) => one.seq)).toEqual([3, 4]);
    expect(windowOf(LINES, 1, 2).map((one) => one.seq)).toEqual([1, 2]);
    expect(windowOf(LINES, 4, 2).map((one) => one.seq)).toEqual([3, 4]);
    expect(windowOf(LINES, 99, 2).map((one) => one.seq)).toEqual([3, 4]);
  });

  test("are cut where the search hits", () => {
    expect(pieces("An error, an ERROR", "error")).toEqual(["An ", "error", ", an ", "ERROR", ""]);
    expect([pieces("x", ""), pieces("İx", "x")]).toEqual([["x"], ["İx"]]);
  });

  test("as a file say when, who, and how bad", () => {
    expect(asText(LINES.slice(1, 2))).toBe("2026-11-20T10:00:02Z w1 error Error: a.b\n");
  });
});
