import { describe, expect, test } from "vitest";
import { age, duration, gist, number, percent, ranFor, shards } from "./format";

describe("numbers", () => {
  test.each([
    [0, "0"],
    [0.123456, "0.1235"],
    [12, "12"],
    [1234.5, "1,235"],
    [0.00001234, "1.23e-5"],
    [2_500_000, "2.50e6"],
    [NaN, "–"],
    [null, "–"],
  ])("%s reads %s", (value, text) => expect(number(value)).toBe(text));
});

describe("messages", () => {
  test.each([
    ['Traceback (most recent call last):\n  File "a.py", line 1\nValueError: mine\n', "ValueError: mine"],
    [
      "The training function raised in step 7 (epoch 1, slice 0):\nTraceback (most recent call last):\nKeyError: 'x'\n",
      "KeyError: 'x' (raised in step 7 (epoch 1, slice 0))",
    ],
    ["it ended.\nAnd more.", "it ended."],
    ["", ""],
  ])("%j in one line", (message, line) => expect(gist(message)).toBe(line));
});

describe("durations", () => {
  test.each([
    [0.0042, "4.2 ms"],
    [0.058, "58 ms"],
    [3.21, "3.2 s"],
    [59.7, "1 min"],
    [192, "3 min 12 s"],
    [7200, "2 h"],
    [90_000, "1 d 1 h"],
  ])("%s s reads %s", (seconds, text) => expect(duration(seconds)).toBe(text));
});

test("an age has one unit and forgives clocks that differ", () => {
  const now = Date.parse("2026-11-20T12:00:00Z");
  expect(age("2026-11-20T11:59:30Z", now)).toBe("30 s ago");
  expect(age("2026-11-20T09:10:00Z", now)).toBe("2 h ago");
  expect(age("2026-11-20T12:00:05Z", now)).toBe("just now");
});

test("a job that has ended ran until its end", () => {
  expect(ranFor("2026-11-20T12:00:00Z", "2026-11-20T12:00:21Z", Date.now())).toBe("21 s");
  expect(ranFor(null, null, 0)).toBe("–");
});

test("shards are shown with both ends included", () => {
  expect([shards([0, 3]), shards([4, 5]), shards([3, 3])]).toEqual(["0–2", "4", "none"]);
});

test("a share reads as percent", () => {
  expect(percent(0.99166, 2)).toBe("99.17 %");
});
