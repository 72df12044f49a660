import { expect, test } from "vitest";
import { labelIn, labelsOf } from "./labels";

test("a label is read as key=value, and what is none says why", () => {
  expect(labelIn(" team = vision ")).toEqual({ key: "team", value: "vision" });
  expect(labelIn("note=a=b")).toEqual({ key: "note", value: "a=b" });
  expect(labelIn("done=")).toEqual({ key: "done", value: "" });
  for (const wrong of ["team", "=x", "a b=c", "-a=b", `${"k".repeat(101)}=v`, `k=${"v".repeat(201)}`])
    expect(labelIn(wrong)).toBeTypeOf("string");
});

test("the labels of several jobs are there once each, with how many have them", () => {
  const jobs = [{ labels: { team: "a", old: "1" } }, { labels: { team: "a" } }, { labels: { team: "b" } }];
  expect(labelsOf(jobs).map(({ key, value, jobs }) => `${key}=${value} ${jobs}`)).toEqual(["old=1 1", "team=a 2", "team=b 1"]);
});
