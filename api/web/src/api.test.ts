import { afterEach, expect, test, vi } from "vitest";
import { all } from "./api";

afterEach(() => vi.unstubAllGlobals());

test("all items of a list are read, page after page", async () => {
  const pages: Record<string, unknown> = {
    "/api/v1/projects?limit=200": { items: ["a", "b"], next_cursor: "Yg" },
    "/api/v1/projects?limit=200&cursor=Yg": { items: ["c"], next_cursor: null },
  };
  vi.stubGlobal("fetch", (path: string) => Promise.resolve(Response.json(pages[path])));
  expect(await all<string>("/projects")).toEqual(["a", "b", "c"]);
});
