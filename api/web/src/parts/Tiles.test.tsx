import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, test } from "vitest";
import { lostWorkers, recoveries } from "../history";
import type { Job, JobEvent, Result, State } from "../wire";
import { Recoveries } from "./Recoveries";
import { ResultCard } from "./ResultCard";
import { lostWhere, Tiles } from "./Tiles";

const AT = "2026-01-02T03:04:05Z";

function event(seq: number, type: string, data: Record<string, unknown>, attempt = 1): JobEvent {
  return { seq, type, at: AT, attempt, generation: 1, data };
}

function job(state: State, attempts: number, recovered: number, stepsLost: number): Job {
  return {
    id: "job_1",
    name: "digits",
    project: "default",
    labels: {},
    owner: "ada",
    spec: { workers: { min: 2, max: 2 } },
    state,
    pending_reason: null,
    reason: null,
    attempt: attempts,
    generation: 1,
    world_size: 2,
    progress: { step: 100, total_steps: 200, epoch: 1 },
    created_at: AT,
    started_at: AT,
    finished_at: null,
    failures: { spent: 1, max: 3 },
    totals: { attempts, generations: 2, recoveries: recovered, steps_lost: stepsLost, wall_s: 20 },
    surplus: "",
    result: null,
    tracking: { run_id: "", url: "" },
    urls: { self: "", page: "" },
  };
}

const LOST_WITH_ALL = [
  event(1, "worker.lost", { worker: "w0", cause: "died", step: 79 }),
  event(2, "worker.lost", { worker: "w1", cause: "died", step: 79 }),
  event(3, "job.queued", {}),
  event(4, "generation.formed", { members: ["w0", "w1"] }, 2),
];

/** The value and the note of one tile. */
function tile(label: string, of: Job, events: readonly JobEvent[]): string[] {
  const drawn = renderToStaticMarkup(
    <Tiles job={of} curves={undefined} recovered={recoveries(events)} lost={lostWorkers(events).length} />,
  );
  const found = new RegExp(`<dt>${label}</dt><dd[^>]*>([^<]*)</dd><dd[^>]*>([^<]*)</dd>`).exec(drawn);
  return found?.slice(1) ?? [];
}

describe("a hosted job", () => {
  test("is said to have lost no number of steps: only its program knows", () => {
    const of = { ...job("running", 1, 1, 0), spec: { framework: "torchrun" } };
    expect(tile("Steps lost", of, [])).toEqual(["–", "only the program knows"]);
    const [one] = recoveries([event(1, "recovered", { total_s: 3 })]);
    expect(renderToStaticMarkup(<Recoveries recoveries={one ? [one] : []} lost={1} attempts={1} />)).toContain(
      "the program started anew",
    );
  });
});

describe("the tile of recoveries", () => {
  test("does not say that nobody was lost of a job whose first attempt ended with all workers", () => {
    const of = job("running", 2, 0, 79);
    expect(tile("Recoveries", of, LOST_WITH_ALL)).toEqual(["0", "2 workers lost over 2 attempts"]);
    expect(tile("Recoveries", of, [])).toEqual(["0", "over 2 attempts"]);
    expect(tile("Steps lost", of, LOST_WITH_ALL)).toEqual(["79", "over 2 attempts"]);
  });

  test("says so where it is true, and names the slowest where there were some", () => {
    expect(tile("Recoveries", job("running", 1, 0, 0), [])).toEqual(["0", "no worker lost"]);
    const made = [...LOST_WITH_ALL.slice(0, 1), event(2, "recovered", { total_s: 0.5, step: 80 })];
    expect(tile("Recoveries", job("running", 1, 1, 0), made)).toEqual(["1", "slowest 500 ms"]);
    expect(tile("Recoveries", job("running", 1, 0, 0), made.slice(0, 1))).toEqual(["0", "1 worker lost"]);
  });
});

describe("the tile of lost steps", () => {
  test("says over what they are counted, of a job that has ended too", () => {
    expect(lostWhere(2, 0, true)).toBe("over 2 attempts");
    expect(lostWhere(1, 3, false)).toBe("over all recoveries");
    expect(lostWhere(1, 0, false)).toBe("so far");
    expect(tile("Steps lost", job("succeeded", 1, 0, 0), [])).toEqual(["0", "over the whole job"]);
  });
});

test("the list of recoveries does not say that nobody was lost where workers were", () => {
  const drawn = (lost: number, attempts: number) =>
    renderToStaticMarkup(<Recoveries recoveries={[]} lost={lost} attempts={attempts} />);
  expect(drawn(2, 2)).toContain("2 workers lost, no recovery in any of the 2 attempts.");
  expect(drawn(0, 2)).toContain("No recovery in any of the 2 attempts.");
  expect(drawn(0, 1)).toContain("No worker was lost.");
});

test("the result says how often it recovered", () => {
  const result = { scores: {}, recoveries: 5, weights_sha256: "ab", wall_s: 0 } as unknown as Result;
  expect(renderToStaticMarkup(<ResultCard result={result} />)).toContain("<span>Recoveries</span><b>5</b>");
});
