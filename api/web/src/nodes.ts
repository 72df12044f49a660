/** What the nodes of a job are called: by their addresses, as its workers have told them. Pure. */
import { useMemo } from "react";
import { node as shortId } from "./format";
import type { JobEvent, Worker } from "./wire";

/** The names of nodes by their ids. */
export type NodeNames = ReadonlyMap<string, string>;

/** Of workers that are there, and of those that were. Nodes at one address keep their ids beside it. */
export function nodeNames(events: readonly JobEvent[], workers: readonly Worker[]): NodeNames {
  const addresses = new Map<string, string>();
  const learn = (id: unknown, address: unknown): void => {
    if (typeof id === "string" && typeof address === "string" && id && address) addresses.set(id, address);
  };
  for (const { type, data } of events) if (type === "worker.joined") learn(data.node, data.address);
  for (const one of workers) learn(one.node, one.address);
  const at = [...addresses.values()];
  const alone = (address: string): boolean => at.indexOf(address) === at.lastIndexOf(address);
  return new Map([...addresses].map(([id, address]) => [id, alone(address) ? address : `${address} ${shortId(id)}`]));
}

/** The beginning of its id, where nobody knows the address. */
export function nodeName(names: NodeNames, id: string): string {
  return names.get(id) ?? shortId(id);
}

/** The same object while the names are the same: charts are drawn anew by it. */
export function useNodeNames(events: readonly JobEvent[], workers: readonly Worker[]): NodeNames {
  const told = useMemo(() => JSON.stringify([...nodeNames(events, workers)]), [events, workers]);
  return useMemo(() => new Map(JSON.parse(told) as [string, string][]), [told]);
}
