/** What nodes and days come to: shares of resources, lines over time, sums by day. */
import type { Line } from "../plot/lines";
import type { Cell } from "../plot/save";
import type { History, JobOnNode, OccupiedNode, Resources } from "./wire";

export const KINDS = ["cpus", "gpus", "memory_gb"] as const;
export type Kind = (typeof KINDS)[number];
export const WORDS: Record<Kind, string> = { cpus: "CPUs", gpus: "GPUs", memory_gb: "GB" };
const ONE: Record<Kind, string> = { cpus: "CPU", gpus: "GPU", memory_gb: "GB" };

export const OTHERS = "another project's job";

export function nameOf(job: JobOnNode): string {
  return job.name ?? OTHERS;
}

export interface Part {
  name: string;
  amount: number;
  /** Of the job, the same on every node; null for what is used by others than jobs. */
  tone: number | null;
}

const TONES = 4;

/** The tone of each job, in the order in which nodes name them. */
export function tonesOf(nodes: readonly OccupiedNode[]): ReadonlyMap<string, number> {
  const jobs = new Set(nodes.flatMap((node) => node.jobs.flatMap((one) => one.job ?? [])));
  return new Map([...jobs].map((job, at) => [job, at % TONES]));
}

/** Who takes how much of one resource of a node. */
export function partsOf(node: OccupiedNode, kind: Kind, tones: ReadonlyMap<string, number>): Part[] {
  const jobs = node.jobs.map((one) => ({ name: nameOf(one), amount: one[kind], tone: tones.get(one.job ?? "") ?? TONES }));
  const others = { name: "other workloads", amount: node.others[kind], tone: null };
  return [...jobs, others].filter((part) => part.amount > 0);
}

/** The resources that are there, in words. */
export function resources(of: Resources): string {
  return KINDS.filter((kind) => of[kind] > 0)
    .map((kind) => `${round(of[kind])}\u00a0${of[kind] === 1 ? ONE[kind] : WORDS[kind]}`)
    .join(", ");
}

export function round(value: number): string {
  return String(Math.round(value * 100) / 100);
}

const MINUTE_MS = 60_000;
const GAP_MINUTES = 3;

/** Where the history leaves minutes out for longer than a change of control planes takes, nothing is known. */
export function gapsIn(at: readonly string[]): boolean[] {
  const times = at.map(Date.parse);
  return times.map((time, index) => index > 0 && time - (times[index - 1] ?? time) > GAP_MINUTES * MINUTE_MS);
}

/** The shares that jobs hold in percent by Unix seconds, broken where nothing is known; GPUs where there are any. */
export function linesOf(history: History): Line[] {
  const kinds = (["cpus", "gpus"] as const).filter((kind) => history[kind].some((one) => one > 0));
  return kinds.map((kind, colour) => lineOf(history, kind, colour));
}

function lineOf(history: History, kind: "cpus" | "gpus", colour: number): Line {
  const [xs, ys]: [number[], number[]] = [[], []];
  const gaps = gapsIn(history.at);
  history.at.forEach((time, at) => {
    const x = Date.parse(time) / 1000;
    if (gaps[at]) {
      xs.push(x);
      ys.push(NaN);
    }
    xs.push(x);
    ys.push(100 * shareAt(history, kind, at));
  });
  return { id: kind, label: WORDS[kind], look: { colour, dash: 0 }, xs: Float64Array.from(xs), ys: Float64Array.from(ys) };
}

function shareAt(history: History, kind: "cpus" | "gpus", at: number): number {
  const whole = history[kind][at] ?? 0;
  return whole > 0 ? (history[`held_${kind}`][at] ?? 0) / whole : 0;
}

export interface Day {
  day: string;
  minutes: number;
  /** Hours of one CPU or GPU. */
  held_cpu_h: number;
  idle_cpu_h: number;
  held_gpu_h: number;
  idle_gpu_h: number;
}

/** The days, newest first, in UTC: a minute that is left out counts for neither. */
export function days(history: History): Day[] {
  const found = new Map<string, Day>();
  history.at.forEach((time, at) => {
    const day = new Date(time).toISOString().slice(0, 10);
    const now = found.get(day) ?? { day, minutes: 0, held_cpu_h: 0, idle_cpu_h: 0, held_gpu_h: 0, idle_gpu_h: 0 };
    const held = (kind: "cpus" | "gpus"): number => history[`held_${kind}`][at] ?? 0;
    const idle = (kind: "cpus" | "gpus"): number => Math.max(0, (history[kind][at] ?? 0) - held(kind));
    now.minutes += 1;
    now.held_cpu_h += held("cpus") / 60;
    now.idle_cpu_h += idle("cpus") / 60;
    now.held_gpu_h += held("gpus") / 60;
    now.idle_gpu_h += idle("gpus") / 60;
    found.set(day, now);
  });
  return [...found.values()].reverse();
}

/** The whole history as the rows of a file. */
export function rowsOf(history: History): Cell[][] {
  const { at, ...columns } = history;
  const names = Object.keys(columns) as (keyof typeof columns)[];
  return [["at", ...names], ...at.map((time, index) => [time, ...names.map((name) => columns[name][index] ?? NaN)])];
}
