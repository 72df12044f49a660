import { afterEach, expect, test, vi } from "vitest";
import type { Job, JobPage } from "../wire";
import { ACTS, actOn, labelling } from "./acts";
import { paramOf } from "./cells";
import { once } from "./reading";
import { pathOf } from "./Sparkline";
import { askedBy, forgetView, savedViews, saveView } from "./views";
import { askedOf } from "./asked";

afterEach(() => vi.unstubAllGlobals());

const job = (id: string, state = "running", more: object = {}): Job =>
  ({ id, name: id, state, spec: {}, ...more }) as unknown as Job;

test("a job that moved to another page while they were read is there once", () => {
  const page = (...ids: string[]): JobPage => ({ items: ids.map((id) => job(id)), next_cursor: null });
  expect(once([page("c", "b"), page("b", "a")]).map((one) => one.id)).toEqual(["c", "b", "a"]);
});

test("an act is done to the jobs that it suits, and a refusal keeps it from no other", async () => {
  const asked: string[] = [];
  vi.stubGlobal("fetch", (path: string, call: { method: string }) => {
    asked.push(`${call.method} ${path}`);
    const refused = Response.json({ detail: "it has just ended." }, { status: 409 });
    return Promise.resolve(path.includes("/b/") ? refused : new Response(null, { status: 202 }));
  });
  const [pause, , , remove] = ACTS;
  if (!pause || !remove) throw new Error("there are acts");
  const jobs = [job("a"), job("b"), job("c", "paused"), job("d", "failed")];
  const refused = await actOn(pause, jobs);
  expect(asked).toEqual(["POST /api/v1/jobs/a/pause", "POST /api/v1/jobs/b/pause"]);
  expect(refused.map((one) => `${one.job.id}: ${one.error.message}`)).toEqual(["b: it has just ended."]);
  await actOn(remove, jobs);
  expect(asked.slice(2)).toEqual(["DELETE /api/v1/jobs/d"]);
});

test("labels are changed of jobs in any state", async () => {
  const asked: string[] = [];
  vi.stubGlobal("fetch", (path: string, call: { method: string; body: string }) => {
    asked.push(`${call.method} ${path} ${call.body}`);
    return Promise.resolve(Response.json({}));
  });
  await actOn(labelling({ team: "a", old: null }), [job("a"), job("b", "failed")]);
  const body = '{"labels":{"team":"a","old":null}}';
  expect(asked).toEqual(["a", "b"].map((id) => `PATCH /api/v1/jobs/${id} ${body}`));
});

test("every state has the acts that the API takes in it", () => {
  const suited = (state: string) => ACTS.filter((act) => act.suits(job("a", state))).map((act) => act.id);
  expect(suited("running")).toEqual(["pause", "cancel"]);
  expect(suited("paused")).toEqual(["resume", "cancel"]);
  expect(suited("stopping")).toEqual([]);
  expect(suited("failed")).toEqual(["delete"]);
});

test("views are saved, chosen and forgotten, and what is damaged is none", () => {
  const kept = new Map<string, string>();
  const storage = {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => void kept.set(key, value),
  } as unknown as Storage;
  const asked = askedOf({ state: "failed", label: "team=vision", sort: "name" });
  saveView(storage, "my failures", asked);
  expect(askedBy(savedViews(storage)["my failures"] ?? "")).toEqual(asked);
  expect(forgetView(storage, "my failures")).toEqual({});
  for (const damaged of ["{", "null", "[1]", '{"a": 1}']) {
    kept.set("ringleader.views", damaged);
    expect(savedViews(storage)).toEqual({});
  }
});

test("a small curve is broken where there is no number, and is level where nothing changes", () => {
  expect(pathOf([0, 1, 2, 3], [2, null, 1, 0])).toBe("M2.0 2.0M47.3 11.0L70.0 20.0");
  expect(pathOf([5], [1])).toBe("M36.0 11.0");
});

test("a parameter is read from the job file", () => {
  expect(paramOf(job("a", "queued", { spec: { params: { lr: 0.1 } } }), "lr")).toBe(0.1);
  expect(paramOf(job("a"), "lr")).toBeUndefined();
});
