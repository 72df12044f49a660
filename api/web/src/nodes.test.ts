import { expect, test } from "vitest";
import { nodeName, nodeNames } from "./nodes";
import type { JobEvent, Worker } from "./wire";

const [A, B, C, D] = ["a", "b", "c", "d"].map((one) => one.repeat(40)) as [string, string, string, string];
const joined = (data: Record<string, unknown>): JobEvent => ({ seq: 1, type: "worker.joined", at: "", attempt: 1, generation: 1, data });

test("nodes are called by their addresses, as workers that are there and those that were have told them", () => {
  const names = nodeNames([joined({ worker: "w0", node: A, address: "10.0.0.7" }), joined({ worker: "w1" })], [
    { id: "w1", node: B, address: "10.0.0.8" } as Worker,
    { id: "w2", node: C } as Worker,
  ]);
  expect([A, B, C].map((id) => nodeName(names, id))).toEqual(["10.0.0.7", "10.0.0.8", "cccccccccc…"]);
});

test("nodes at one address keep their ids beside it", () => {
  const names = nodeNames([], [A, D].map((node) => ({ id: node, node, address: "127.0.0.1" }) as Worker));
  expect([A, D].map((id) => nodeName(names, id))).toEqual(["127.0.0.1 aaaaaaaaaa…", "127.0.0.1 dddddddddd…"]);
});
