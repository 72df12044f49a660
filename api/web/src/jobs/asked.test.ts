import { expect, test } from "vitest";
import { parseQuery, queryText } from "../address";
import { askedOf, columnsAsked, columnsSaid, groupQuery, inGroup, listQuery, narrowings, NOTHING_ASKED, notUnderstood, opened } from "./asked";
import { column, curvesOf, drawnBy, flipped, KNOWN, metricsOf, sortedNext, STANDARD } from "./columns";

test("an address is read as it was written", () => {
  const text =
    "?search=digits&state=failed&project=a&owner=ada&label=team=vision&label=stage=b&param=lr=0.1" +
    "&sort=-metric:val/loss:min&columns=name,curve:loss,metric:val/loss:min,param:lr&group=label:team&open=team=vision&open=%21team";
  expect(queryText({ ...askedOf(parseQuery(text)) })).toBe(text);
});

test("what is not valid in an address is not asked for, and is said no more", () => {
  const asked = askedOf(parseQuery("?state=odd&label=team&label=a=b&sort=colour&columns=what,owner&x=1&search="));
  expect(asked).toEqual({ ...NOTHING_ASKED, label: ["a=b"], columns: "owner" });
  expect(Object.keys(asked)).toContain("state");
  expect(askedOf({ sort: "-submitted_at", columns: "nonsense" })).toEqual(NOTHING_ASKED);
});

test("the API is asked for the metrics of the columns, each once", () => {
  const asked = askedOf({ columns: "name,metric:loss:min,metric:loss:last,curve:accuracy", sort: "metric:loss:min" });
  expect(listQuery(asked)).toMatchObject({ metrics: "loss", sort: "metric:loss:min" });
  expect(listQuery(NOTHING_ASKED).metrics).toBeUndefined();
  expect(curvesOf(columnsAsked(asked))).toEqual(["accuracy"]);
  expect(metricsOf(Array.from({ length: 12 }, (_, at) => `metric:m${at}:max`))).toHaveLength(10);
});

test("the standard columns are not said", () => {
  expect(columnsAsked(NOTHING_ASKED)).toEqual(STANDARD);
  expect(columnsSaid(STANDARD)).toBeUndefined();
  expect(columnsSaid(flipped(STANDARD, "owner"))).toBe("state,name,progress,workers,submitted_at,owner");
  expect(columnsSaid(flipped(flipped(STANDARD, "owner"), "owner"))).toBeUndefined();
});

test("a metric's name may hold colons and slashes", () => {
  expect(drawnBy("metric:a:b/c:last")).toEqual({ kind: "metric", name: "a:b/c", statistic: "last" });
  expect(drawnBy("metric:loss:mean")).toBeNull();
  expect(drawnBy("curve:a:b")).toEqual({ kind: "curve", name: "a:b" });
  expect(column("metric:val_loss:min")).toMatchObject({ title: "val loss min", order: "metric:val_loss:min", right: true });
  expect(column("nothing")).toBeNull();
});

test("by every column but that of all labels the list can be sorted, in an order that addresses know", () => {
  const ids = [...KNOWN.map((one) => one.id), "metric:loss:max", "curve:a:b", "param:lr", "label:team"];
  const orders = ids.map((id) => column(id)?.order ?? null);
  expect(ids.filter((_, at) => orders[at] === null)).toEqual(["labels"]);
  for (const order of orders.filter((one) => one !== null)) {
    for (const sort of [order, `-${order}`]) expect(askedOf({ sort }).sort ?? "-submitted_at").toBe(sort);
  }
  expect(column("curve:a:b")?.order).toBe("metric:a:b:last");
});

test("a click on a head sorts one way, the next the other, a third not at all", () => {
  const of = (id: string, sort: string) => {
    const known = column(id);
    return known && sortedNext(known, sort);
  };
  expect([of("name", "-step"), of("name", "name"), of("name", "-name")]).toEqual(["name", "-name", undefined]);
  expect([of("progress", "name"), of("progress", "-step"), of("progress", "step")]).toEqual(["-step", "step", undefined]);
});

test("each filter can be taken away alone", () => {
  const asked = askedOf({ owner: "ada", label: ["a=b", "c=d"], param: "lr=0.1", state: "running" });
  const named = narrowings(asked);
  expect(named.map((one) => one.words)).toEqual(["owner: ada", "a=b", "c=d", "param lr=0.1"]);
  expect(named[1]?.without).toEqual({ label: ["c=d"] });
  expect({ ...asked, ...named[3]?.without }.param).toBeUndefined();
});

test("a group is asked for with all filters, and its jobs by one more", () => {
  const asked = askedOf({ label: "a=b", sort: "name", group: "label:team", columns: "name,metric:loss:min" });
  expect(groupQuery(asked)).toMatchObject({ by: "label:team", label: ["a=b"], metrics: "loss", sort: undefined });
  expect(groupQuery(NOTHING_ASKED)).toBeNull();
  expect(inGroup(asked, "!team")).toEqual({ ...asked, group: undefined, label: ["a=b", "!team"] });
  expect(inGroup(askedOf({ group: "param:lr" }), 'lr="0.1"').param).toEqual(['lr="0.1"']);
  const open = { ...asked, ...opened(asked, "!team") };
  expect([open.open, opened(open, "!team")]).toEqual([["!team"], { open: undefined }]);
  expect(askedOf({ group: "state", open: "a=b" })).toEqual(NOTHING_ASKED);
});

test("what a list cannot be asked for is told, and nothing that it can", () => {
  const asked = parseQuery("?state=flying&state2=x&sort=-submitted_at&columns=name,odd,metric:loss:last&label=a=1&label=b&search=x");
  expect(notUnderstood(asked)).toEqual(["state=flying", "state2=x", "columns=odd", "label=b"]);
  expect(notUnderstood(parseQuery("?state=failed&sort=-metric:loss:min&label=a=1&label=!b&columns=name"))).toEqual([]);
});
