import { describe, expect, test } from "vitest";
import { boundaries, describe as sentence, lostWorkers, recoveries } from "./history";
import type { JobEvent } from "./wire";

const event = (seq: number, type: string, data: Record<string, unknown> = {}, attempt = 1): JobEvent => ({
  seq,
  type,
  at: "2026-11-20T10:00:00Z",
  attempt,
  generation: seq,
  data,
});

test("a lost worker stands at the step of its event", () => {
  const [lost] = lostWorkers([event(1, "worker.lost", { worker: "w1", step: 140, cause: "SIGKILL" })]);
  expect(lost).toMatchObject({ worker: "w1", step: 140, cause: "SIGKILL" });
});

test("a worker lost before any step is listed but not drawn", () => {
  expect(lostWorkers([event(1, "worker.lost", { worker: "w1", step: null })])).toEqual([]);
});

describe("recoveries", () => {
  test("know whom they made good, where, and what each phase cost", () => {
    const [one] = recoveries([
      event(1, "worker.lost", { worker: "w1", step: 140 }),
      event(2, "worker.lost", { worker: "w2", step: 140 }),
      event(3, "recovered", { detect_s: 0.02, heal_s: 0.01, total_s: 0.03, steps_lost: 0 }),
    ]);
    expect(one).toMatchObject({ workers: ["w1", "w2"], step: 140, totalS: 0.03, stepsLost: 0 });
    expect(one?.phases).toEqual({ detect: 0.02, decide: 0, regroup: 0, heal: 0.01, redo: 0 });
  });

  test("do not take over the losses of an attempt that ended", () => {
    const [one] = recoveries([
      event(1, "worker.lost", { worker: "w1", step: 900 }, 1),
      event(2, "worker.lost", { worker: "w5", step: 7 }, 2),
      event(3, "recovered", { total_s: 0.1 }, 2),
    ]);
    expect(one).toMatchObject({ workers: ["w5"], step: 7 });
  });
});

test("a generation begins where its event says, and one that does not say it nowhere", () => {
  const formed = [
    event(1, "generation.formed", { step: 0, members: ["w0"] }),
    event(2, "generation.formed", { members: 3 }),
    event(3, "generation.formed", { step: 50, members: 3 }),
  ];
  expect(boundaries(formed).map(({ step, members }) => [step, members])).toEqual([
    [0, 1],
    [50, 3],
  ]);
});

describe("an event in words", () => {
  test("names who was lost, where and why", () => {
    const { title, detail, tone } = sentence(
      event(1, "worker.lost", { worker: "w1", step: 1400, cause: "SIGKILL", rank: 1, pid: 42 }),
    );
    expect([title, detail, tone]).toEqual([
      "Worker w1 lost at step 1,400",
      "SIGKILL · rank 1 · pid 42",
      "bad",
    ]);
  });

  test("names who is stalled or slow, and a fault that was injected", () => {
    const told = [
      event(1, "worker.stalled", { worker: "w2", rank: 2, step: 40, phase: "forward", since_s: 31 }),
      event(2, "worker.slow", { worker: "w1", rank: 1, step: 41, step_s: 0.5, others_s: 0.2, evicted: false }),
      event(3, "fault.injected", { fault: "freeze", target: "w0", effect: "SIGSTOP to process 7", who: "ada" }),
      event(4, "worker.lost", { worker: "w0", rank: 0, step: 42, cause: "frozen", phase: "exchange" }),
      event(5, "worker.lost", { worker: "w4", rank: null, step: 43, cause: "raised", why: "OSError: no x" }),
      event(6, "worker.astray", { worker: "w3", what: "1.weight", why: "changed through .data" }),
      event(7, "worker.explained", { worker: "w0", cause: "killed by Ray's memory monitor" }),
    ].map((one) => sentence(one));
    expect(told.map(({ title, detail }) => [title, detail])).toEqual([
      ["Worker w2 is making no progress at step 40", "31 s in forward · rank 2"],
      ["Worker w1 is slow at step 41", "500 ms per step, the others 200 ms · rank 1"],
      ["Fault injected into w0: freeze", "SIGSTOP to process 7 · ada"],
      ["Worker w0 lost at step 42", "frozen · in exchange · rank 0"],
      ["Worker w4 lost at step 43", "raised: OSError: no x"],
      ["Worker w3 is being healed: 1.weight differs", "changed through .data"],
      ["Why worker w0 died", "killed by Ray's memory monitor"],
    ]);
  });

  test("names what differed on a worker, and lines that run again on something else", () => {
    const told = [
      event(1, "member.differed", { worker: "w2", what: "settings 0", why: "the program changed it" }),
      event(2, "boundary.unrecorded", { line: "train.py:9: best = copy(net)", bound_bytes: 9, cure: "keep it" }),
      event(2, "boundary.unrecorded", { line: "train.py:9: best = copy(net)", variable: "best", cure: "keep it" }),
      event(3, "program.differs", { variable: "started", line: "train.py:4: started = time()", cure: "keep it" }),
    ].map((one) => sentence(one));
    expect(told.map(({ title, detail, tone }) => [title, detail, tone])).toEqual([
      ["Worker w2 was corrected: settings 0 differed", "the program changed it", "warn"],
      ["Lines between loops depend on weights that are not recorded", "train.py:9: best = copy(net) · keep it", "warn"],
      ["best depends on weights that are not recorded", "train.py:9: best = copy(net) · keep it", "warn"],
      ["started has a different value when its lines run again", "train.py:4: started = time() · keep it", "warn"],
    ]);
  });

  test("says what a job saved, and what it could not", () => {
    const told = [
      event(1, "artifact.saved", { name: "net", file: "net-00000004.pt", kind: "object", step: 4, size_bytes: 1200 }),
      event(2, "artifact.failed", { file: "net-00000008.pt", step: 8, why: "no room", hint: "Free space" }),
    ].map((one) => sentence(one));
    expect(told.map(({ title, detail, tone }) => [title, detail, tone])).toEqual([
      ["Saved net-00000004.pt", "1.2 KB", "plain"],
      ["net-00000008.pt could not be saved", "no room · Free space", "warn"],
    ]);
  });

  test("says where a worker is by the address of its node, where that was told", () => {
    const id = "a".repeat(40);
    const told = [{ node: id, address: "10.0.0.7" }, { node: id }].map((where) => sentence(event(1, "worker.joined", { worker: "w1", rank: 1, step: 3, ...where })));
    expect(told.map(({ title, detail }) => [title, detail])).toEqual([
      ["Worker w1 joined at step 3", "rank 1 · node 10.0.0.7"],
      ["Worker w1 joined at step 3", "rank 1 · node aaaaaaaaaa…"],
    ]);
  });

  test("says which packages a node got, and how long that took", () => {
    const told = [
      event(1, "requirements.installing", { from: "requirements.txt", packages: 2 }),
      event(2, "requirements.installed", { packages: ["tiny==1.0", "small==2.0"], took_s: 1.5 }),
    ].map((one) => sentence(one));
    expect(told.map(({ title, detail }) => [title, detail])).toEqual([
      ["Installing packages from requirements.txt", "packages 2"],
      ["2 packages installed in 1.5 s", "tiny==1.0, small==2.0"],
    ]);
  });

  test("says what was asked for and is not had, and what to do", () => {
    const { title, detail, tone } = sentence(
      event(1, "warning", { about: "codec", message: "Nothing is coded.", hint: "Leave codec out." }),
    );
    expect([title, detail, tone]).toEqual(["Nothing is coded.", "Leave codec out.", "warn"]);
  });

  test("says who left in peace, and whom a supervisor that came back found", () => {
    const told = [
      event(1, "worker.left", { worker: "w1", step: 7, cause: "drain", why: "SIGTERM" }),
      event(2, "supervisor.returned", { start: 2, gone: [] }),
      event(3, "supervisor.returned", { start: 3, gone: ["w1", "w2"] }),
    ].map((one) => sentence(one));
    expect(told.map(({ title, detail }) => [title, detail])).toEqual([
      ["Worker w1 left at step 7", "drain · SIGTERM"],
      ["The supervisor was restarted", "start 2 · no worker was lost"],
      ["The supervisor was restarted", "start 3 · lost meanwhile: w1, w2"],
    ]);
  });

  test("says what a recovery cost", () => {
    const { title, detail } = sentence(
      event(1, "recovered", { total_s: 0.058, detect_s: 0.021, steps_lost: 0 }),
    );
    expect([title, detail]).toEqual(["Recovered in 58 ms", "0 steps lost · detect 21 ms"]);
  });

  test("names the schedule of each size of bucket", () => {
    const inPlace = { schedule: "in_place", buckets: 3, least_bytes: 26_214_400, most_bytes: 26_214_400 };
    const gathered = { schedule: "gather", buckets: 1, least_bytes: 1024, most_bytes: 1024 };
    const told = event(1, "exchange.chosen", { algorithm: "auto", ways: [inPlace, gathered] });
    const { title, detail } = sentence(told);
    expect([title, detail]).toEqual([
      "Buckets summed by auto",
      "26.2 MB × 3 buckets: in place (shared memory) · 1.0 KB × 1 bucket: gather",
    ]);
  });

  test("tells a checkpoint by its step, size and place", () => {
    const saved = event(1, "checkpoint.saved", { step: 500, uri: "file:///c", size_bytes: 4_200_000 });
    const { title, detail } = sentence(saved);
    expect([title, detail]).toEqual(["Checkpoint saved at step 500", "4.2 MB · file:///c"]);
    const restored = event(3, "checkpoint.restored", { step: 72, uri: "file:///c", steps_lost: 8 });
    expect(sentence(restored).detail).toBe("8 steps lost · file:///c");
    const none = sentence(event(4, "checkpoint.none", { step: 0, steps_lost: 1 }));
    expect([none.title, none.detail]).toEqual(["The attempt starts without a checkpoint", "1 step lost"]);
    const skipped = event(2, "checkpoint.skipped", { why: "torn" });
    expect(sentence(skipped).title).toBe("A checkpoint was skipped");
  });

  test("tells a resize by its bounds, and a cancellation by its reason", () => {
    const labels = { who: "user", set: { team: "a" }, removed: ["old"] };
    expect(sentence(event(1, "labels.changed", labels)).detail).toBe("team=a · without old");
    expect(sentence(event(1, "workers.resized", { who: "user", min: 2, max: 4 })).title).toBe(
      "Resized to 2–4 workers",
    );
    const cancelled = event(2, "job.cancelled", {
      who: "user",
      from: "stopping",
      reason: { message: "cancelled by the user" },
    });
    expect(sentence(cancelled)).toMatchObject({ title: "Job cancelled", detail: "Cancelled by the user" });
  });

  test("names who did it: a user by name, a part of the system as such", () => {
    const moved = (who: string) => sentence(event(1, "job.queued", { who })).detail;
    expect([moved("ada"), moved("scheduler")].map((told) => told.toLowerCase())).toEqual(["by ada", "by the scheduler"]);
  });

  test("of an unknown kind still shows what it holds", () => {
    expect(sentence(event(1, "weather.changed", { step: 5, uri: "file:///c" })).detail).toBe(
      "step 5 · uri file:///c",
    );
  });
});
