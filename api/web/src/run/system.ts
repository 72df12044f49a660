/** What a job's workers and their nodes use, as charts: which there are, their lines and units, what nobody measured. Pure. */
import { DASHES } from "../plot/palette";
import type { Line, Look } from "../plot/lines";
import type { SystemSeries } from "../wire";
import { nodeName, type NodeNames } from "../nodes";

type Kind = SystemSeries["kind"];
type Unit = "share" | "bytes" | "rate" | "seconds";

interface Plan {
  title: string;
  kind: Kind;
  unit: Unit;
  /** Figures, and what tells them apart where there are two. */
  figures: readonly (readonly [string, string])[];
  what: string;
}

export interface SystemChart {
  title: string;
  kind: Kind;
  /** What y counts, as `% of one core` and `MB/s`. */
  unit: string;
  lines: readonly Line[];
}

/** Workers first: it is theirs that one asks about. */
const PLANS: readonly Plan[] = [
  { title: "CPU of workers", kind: "worker", unit: "share", figures: [["cpu_percent", ""]], what: "% of one core" },
  { title: "Own time of a step", kind: "worker", unit: "seconds", figures: [["step_s", ""]], what: "" },
  { title: "Memory of workers", kind: "worker", unit: "bytes", figures: [["memory_bytes", ""]], what: "" },
  { title: "GPU memory of workers", kind: "worker", unit: "bytes", figures: [["gpu_memory_bytes", ""]], what: "" },
  { title: "CPU of nodes", kind: "node", unit: "share", figures: [["cpu_percent", ""]], what: "% of all cores" },
  { title: "Memory of nodes", kind: "node", unit: "bytes", figures: [["memory_bytes", ""]], what: "" },
  { title: "Disk of nodes", kind: "node", unit: "rate", figures: [["disk_read_bytes_per_s", "read"], ["disk_written_bytes_per_s", "written"]], what: "" },
  { title: "Network of nodes", kind: "node", unit: "rate", figures: [["network_received_bytes_per_s", "received"], ["network_sent_bytes_per_s", "sent"]], what: "" },
  { title: "GPUs of nodes", kind: "node", unit: "share", figures: [["gpu_percent", ""]], what: "% on average" },
  { title: "GPU memory of nodes", kind: "node", unit: "bytes", figures: [["gpu_memory_bytes", ""]], what: "" },
];
const BYTES = [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"], [1, "B"]] as const;
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]] as const;
/** How much later than its span a sample may come, in seconds, before nothing was measured in between. */
const LATE_S = 2.5;

/** The charts for which there are values. `nodes` are in the order of their colours; others follow. */
export function chartsOf(series: readonly SystemSeries[], nodes: readonly string[], names: NodeNames): SystemChart[] {
  const order = [...new Set([...nodes, ...series.map((one) => one.node)])];
  return PLANS.flatMap((plan): SystemChart[] => {
    const mine = series.filter((one) => one.kind === plan.kind);
    const values = mine.flatMap((one) => plan.figures.map(([figure]) => most(one.figures[figure])));
    const highest = Math.max(-1, ...values);
    if (highest < 0) return [];
    const [size, name] = sizeOf(plan, highest);
    const placed = new Map<string, number>();
    const lines = mine.flatMap((one) => {
      const place = placed.get(one.node) ?? 0;
      placed.set(one.node, place + 1);
      return plan.figures.flatMap(([figure, which], at) => lineOf(one, names, [figure, which], size, { colour: Math.max(0, order.indexOf(one.node)) % 6, dash: (place + at) % DASHES.length }));
    });
    return [{ title: plan.title, kind: plan.kind, unit: plan.unit === "rate" ? `${name}/s` : name, lines }];
  });
}

/** The unit in which the highest value is a number that one can read. */
function sizeOf({ unit, what }: Plan, highest: number): readonly [number, string] {
  if (unit === "share") return [1, what];
  const sizes: readonly (readonly [number, string])[] = unit === "seconds" ? SECONDS : BYTES;
  return sizes.find(([least]) => highest >= least) ?? sizes.at(-1) ?? [1, ""];
}

/** What was not measured, by reason: `CPU of nodes, Disk of n2 (this platform does not give it)`. */
export function unmetOf(series: readonly SystemSeries[], nodes: NodeNames): string[] {
  const byReason = new Map<string, string[]>();
  for (const { title, kind, figures } of PLANS) {
    const names = figures.map(([figure]) => figure);
    const mine = series.filter((one) => one.kind === kind);
    const without = mine.filter((one) => names.every((name) => one.figures[name] === undefined));
    const nobody = without.length === mine.length;
    // Of nodes it is said which; workers are many, and as their nodes are.
    for (const one of nobody ? without.slice(0, 1) : kind === "node" ? without : []) {
      const why = one.unmet[names[0] ?? ""] ?? "";
      const what = nobody ? title : title.replace("nodes", nodeName(nodes, one.id));
      byReason.set(why, [...(byReason.get(why) ?? []), what]);
    }
  }
  return [...byReason].map(([why, what]) => `${what.join(", ")} (${why})`);
}

/** Whether there is a time in which nothing was measured of somebody who was measured before and behind it. */
export function hasGaps(series: readonly SystemSeries[]): boolean {
  return series.some((one) => one.times.some((_, at) => isGap(one, at)));
}

/** What is known, with the samples of an answer in place of its own from their first one on. */
export function followed(known: readonly SystemSeries[], answer: readonly SystemSeries[]): SystemSeries[] {
  const fresh = new Map(answer.map((one) => [keyOf(one), one]));
  const all = known.map((one) => {
    const more = fresh.get(keyOf(one));
    fresh.delete(keyOf(one));
    return more ? joined(one, more) : one;
  });
  return [...all, ...fresh.values()];
}

/** The Unix time from which to ask for what is new. */
export function newestOf(series: readonly SystemSeries[]): number {
  return series.reduce((newest, { times }) => Math.max(newest, times.at(-1) ?? 0), 0);
}

function joined(before: SystemSeries, more: SystemSeries): SystemSeries {
  const from = before.times.findIndex((time) => time >= (more.times[0] ?? Infinity));
  const kept = from < 0 ? before.times.length : from;
  const names = [...new Set([...Object.keys(before.figures), ...Object.keys(more.figures)])];
  const figures = names.map((name): [string, (number | null)[]] => {
    const [old, fresh] = [before.figures[name], more.figures[name]];
    return [name, [...(old?.slice(0, kept) ?? nulls(kept)), ...(fresh ?? nulls(more.times.length))]];
  });
  return {
    ...more,
    times: [...before.times.slice(0, kept), ...more.times],
    spans_s: [...before.spans_s.slice(0, kept), ...more.spans_s],
    figures: Object.fromEntries(figures),
    unmet: Object.fromEntries(Object.entries(before.unmet).filter(([name]) => !(name in more.figures))),
  };
}

function lineOf(one: SystemSeries, names: NodeNames, [figure, which]: readonly [string, string], size: number, look: Look): Line[] {
  const values = one.figures[figure];
  if (values === undefined) return [];
  const [xs, ys]: [number[], number[]] = [[], []];
  one.times.forEach((time, at) => {
    if (isGap(one, at)) {
      xs.push(time - (one.spans_s[at] ?? 0));
      ys.push(NaN);
    }
    xs.push(time);
    ys.push((values[at] ?? NaN) / size);
  });
  const name = one.kind === "node" ? `node ${nodeName(names, one.id)}` : one.id;
  return [{ id: [one.id, which].filter(Boolean).join(" "), label: [name, which].filter(Boolean).join(" "), look, xs: Float64Array.from(xs), ys: Float64Array.from(ys) }];
}

function isGap({ times, spans_s }: SystemSeries, at: number): boolean {
  return at > 0 && (times[at] ?? 0) - (spans_s[at] ?? 0) - (times[at - 1] ?? 0) > LATE_S;
}

function most(values: readonly (number | null)[] | undefined): number {
  return (values ?? []).reduce<number>((high, value) => Math.max(high, value ?? -1), -1);
}

function nulls(count: number): null[] {
  return new Array<null>(count).fill(null);
}

function keyOf({ kind, id }: SystemSeries): string {
  return `${kind} ${id}`;
}
