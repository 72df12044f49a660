import { expect, test } from "vitest";
import { parseQuery, queryText } from "./address";

test("a query reads as it is written, and says no key that says nothing", () => {
  const query = { state: "running", label: ["team=vision", "stage=a,b"], search: "a & b=c" };
  expect(queryText(query)).toBe("?state=running&label=team=vision&label=stage=a,b&search=a+%26+b=c");
  expect(parseQuery(queryText(query))).toEqual(query);
  expect(queryText({ state: "", after: null, label: [], limit: 20, name: undefined })).toBe("?limit=20");
  expect(queryText({})).toBe("");
});
