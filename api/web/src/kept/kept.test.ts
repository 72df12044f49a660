import { expect, test } from "vitest";
import type { Job, JobEvent, KeptCheckpoint } from "../wire";
import { finalBeginning, kindOf, nameOf, newestImages, savedAs, unsaved } from "./kept";

const at = (uri: string): KeptCheckpoint => ({ uri, step: 3, size_bytes: 1, attempt: 1, at: "2026-11-20T12:00:00Z" });

function event(seq: number, type: string, data: Record<string, unknown> = {}): JobEvent {
  return { seq, type, at: "2026-11-20T12:00:00Z", attempt: 1, generation: 1, data };
}

test("a checkpoint has the last part of its place as its name, which says whether the job ended with it", () => {
  expect(nameOf(at("s3://b/job_a/step-3-a1-g2"))).toBe("step-3-a1-g2");
  expect(kindOf(at("/home/checkpoints/job_a/step-3-a1-g2"))).toBe("during training");
  expect(kindOf(at("/home/checkpoints/job_a/step-3-a1-g2-end"))).toBe("end of the job");
});

test("a checkpoint that could not be written is told of until one is written", () => {
  const failed = event(2, "checkpoint.failed", { step: 9, why: "no space left" });
  expect(unsaved([event(1, "checkpoint.saved"), failed, event(3, "worker.lost")])).toMatchObject({ step: 9, why: "no space left" });
  expect(unsaved([failed, event(3, "checkpoint.saved")])).toBeNull();
  expect(unsaved([event(1, "checkpoint.failed", { why: "gone" })])).toMatchObject({ step: null });
});

test("only a job that has succeeded and left its weights can be begun with as a whole", () => {
  const weights = [{ name: "weights.safetensors", size_bytes: 1 }];
  const job = (state: string) => ({ id: "job_a", state }) as Job;
  expect(finalBeginning(job("succeeded"), weights)).toBe("job_a");
  expect(finalBeginning(job("failed"), weights)).toBeNull();
  expect(finalBeginning(job("succeeded"), [])).toBeNull();
});

test("the newest images come first, by the steps at which they were saved", () => {
  const files = ["b-00000004.png", "a-00000010.png", "own.png", "net-00000011.pt"].map((name) => ({ name, size_bytes: 1 }));
  expect(newestImages(files, 2).map(({ name }) => name)).toEqual(["a-00000010.png", "b-00000004.png"]);
  expect(savedAs("a-00000010.png")).toEqual({ name: "a", step: 10 });
  expect(savedAs("own.png")).toEqual({ name: "own.png", step: null });
});
