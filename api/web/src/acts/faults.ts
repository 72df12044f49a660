/** The faults that one can inject from the page, and whom they can hit. Pure. */
import type { Roles } from "../access";
import type { Worker } from "../wire";

export interface Fault {
  name: string;
  label: string;
  /** What happens, in a sentence. */
  effect: string;
  /** Whether it lasts a time. */
  lasts: boolean;
  /** The role of whom it hits; null: the supervisor. */
  hits: "worker" | "server" | null;
}

/** The others, which wait for a replacement to be hit as well, are the command line's. */
export const FAULTS: readonly Fault[] = [
  { name: "kill", label: "Kill a worker", effect: "Its process is killed (SIGKILL). The others go on without it.", lasts: false, hits: "worker" },
  { name: "freeze", label: "Freeze a worker", effect: "Its process stops (SIGSTOP) until it is taken for lost.", lasts: false, hits: "worker" },
  { name: "slow", label: "Slow a worker down", effect: "Its process is stopped three quarters of the time.", lasts: true, hits: "worker" },
  { name: "drain", label: "Drain a worker's machine", effect: "Its worker is told that the machine goes away.", lasts: true, hits: "worker" },
  { name: "server", label: "Kill a server", effect: "The process of a parameter server is killed (SIGKILL).", lasts: false, hits: "server" },
  { name: "supervisor", label: "Kill the supervisor", effect: "The process that leads the job is killed (SIGKILL). Another one takes over.", lasts: false, hits: null },
];

export function victims(fault: Fault, workers: readonly Worker[]): Worker[] {
  return fault.hits === null ? [] : workers.filter(({ role }) => (role === "server") === (fault.hits === "server"));
}

/** Whether these roles suffice to inject faults into jobs of the project. */
export function mayFault(roles: Roles, project: string): boolean {
  const role = roles[project] ?? roles["*"];
  return role === "operator" || role === "admin";
}
