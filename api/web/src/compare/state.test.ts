import { describe, expect, test } from "vitest";
import { pointsEach } from "../plot/view";
import { formatCompare, parseCompare } from "./state";

describe("the address of the compare view", () => {
  test("is read back as it was written", () => {
    const query =
      "?jobs=a,b&names=loss,loss/0&axis=wall&from=10&to=20.5&log=loss&smooth=loss:0.6&baseline=b&strips=1&run=a&x=params.lr&y=loss";
    expect(decodeURIComponent(formatCompare(parseCompare(query).state))).toBe(query);
  });

  test("says by itself loss by step", () => {
    const { state } = parseCompare("?jobs=a");
    expect(state).toMatchObject({ names: ["loss"], axis: "step", zoom: null, log: [], baseline: null });
  });

  test("holds each job once and no empty one, and 100 at most", () => {
    expect(parseCompare("?jobs=a,,a, b ,").state.jobs).toEqual(["a", "b"]);
    const many = parseCompare(`?jobs=${Array.from({ length: 130 }, (_, at) => `j${at}`).join(",")}`);
    expect([many.state.jobs.length, many.surplus.jobs]).toEqual([100, 30]);
  });

  test("forgets what is wrong instead of failing", () => {
    const wrong = "?jobs=a&axis=sideways&from=9&to=3&log=nothing&smooth=loss:x,loss,other:0.5";
    const { state } = parseCompare(wrong);
    expect(state).toMatchObject({ axis: "step", zoom: null, log: [], smoothing: {} });
    expect(parseCompare("?jobs=a&from=NaN&to=1").state.zoom).toBeNull();
    expect(parseCompare("?jobs=a&from=1").state.zoom).toBeNull();
    expect(parseCompare("?jobs=a&smooth=loss:7").state.smoothing).toEqual({});
    expect(parseCompare("?jobs=a&smooth=loss:0.995")).toMatchObject({ state: { smoothing: { loss: 0.995 } }, ignored: [] });
    expect(parseCompare("").state.jobs).toEqual([]);
    expect(parseCompare(wrong).ignored).toEqual(["axis=sideways", "from=9", "to=3", "log=nothing", "smooth=loss:x,loss,other:0.5"]);
    expect(parseCompare("?jobs=a&zzz=1&smooth=loss:7").ignored).toEqual(["zzz=1", "smooth=loss:7"]);
    expect(parseCompare("?jobs=a,a&names=&axis=step&strips=0&from=1e1&to=20.50&smooth=loss:0.6").ignored).toEqual([]);
  });

  test("keeps names that are markup as names", () => {
    const { state } = parseCompare(`?jobs=${encodeURIComponent("<b>&x=1")}`);
    expect(parseCompare(formatCompare(state)).state.jobs).toEqual(["<b>&x=1"]);
  });
});

test("an answer never has more values than the API gives", () => {
  expect(pointsEach(2, 1)).toBe(1000);
  expect(pointsEach(100, 1)).toBe(500);
  expect(pointsEach(100, 20)).toBe(125);
});
