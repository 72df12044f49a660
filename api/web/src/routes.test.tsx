import { createMemoryHistory, RouterProvider } from "@tanstack/react-router";
import { QueryClientProvider } from "@tanstack/react-query";
import { renderToStaticMarkup } from "react-dom/server";
import { beforeAll, describe, expect, test } from "vitest";
import { newCache } from "./cache";
import { newRouter } from "./routes";

async function at(path: string) {
  const router = newRouter(createMemoryHistory({ initialEntries: [path] }));
  await router.load();
  return router;
}

async function shownAt(path: string): Promise<string> {
  const router = await at(path);
  return renderToStaticMarkup(
    <QueryClientProvider client={newCache()}>
      <RouterProvider router={router} />
    </QueryClientProvider>,
  );
}

describe("the frame around every view", () => {
  let shown = "";
  beforeAll(async () => {
    shown = await shownAt("/jobs/1");
  });

  test("leads to the guide and to MLflow, which are pages of their own", () => {
    expect(shown).toContain('<a href="/guide/" target="_blank" rel="noreferrer">Guide');
    expect(shown).toContain('<a href="/mlflow/" target="_blank" rel="noreferrer">MLflow');
  });

  test("marks where one is", () => {
    expect(/<a[^>]*aria-current="page"[^>]*>([^<]*)/.exec(shown)?.[1]).toBe("Jobs");
    expect(shown.match(/aria-current/g)).toHaveLength(1);
  });
});

test("a view is there when the page before it is left", async () => {
  expect(await shownAt("/jobs/1")).toContain('class="skeleton');
  expect(await shownAt("/compare")).toContain("<h1>");
});

test("every path has its view", async () => {
  const place = async (path: string): Promise<string> => {
    const { location, matches } = (await at(path)).state;
    return `${matches.at(-1)?.fullPath} ${location.href}`;
  };
  expect(await place("/jobs?state=running")).toBe("/jobs /jobs?state=running");
  expect(await place("/jobs/job%201")).toMatch(/^\/jobs\/\$id /);
  expect(await place("/cluster")).toBe("/cluster /cluster");
  expect(await place("/submit")).toBe("/submit /submit");
  expect(await place("/sweeps")).toBe("/sweeps /sweeps");
  expect(await place("/sweeps/sweep_1?sort=-params.lr")).toBe("/sweeps/$id /sweeps/sweep_1?sort=-params.lr");
  expect(await place("/alerts?state=failed")).toBe("/alerts /alerts?state=failed");
  expect(await place("/access")).toBe("/access /access");
});
