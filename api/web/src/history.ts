/** What the events of a job tell: who was lost where, what each recovery cost, where generations begin. */
import { bytes, duration, gist, node as shortId, plural, sentence } from "./format";
import type { JobEvent } from "./wire";

/** Parts of the system that move a job; everybody else who does is a user. */
const OURS: ReadonlySet<unknown> = new Set(["scheduler", "supervisor", "reconciler", "user"]);

export interface Lost {
  seq: number;
  step: number;
  worker: string;
  cause: string;
  at: string;
  attempt: number;
  generation: number;
}

export const PHASES = ["detect", "decide", "regroup", "heal", "redo"] as const;
export type Phase = (typeof PHASES)[number];

export interface Recovery {
  seq: number;
  /** The step at which the worker was lost, and the one at which training went on. */
  step: number;
  until: number;
  workers: string[];
  cause: string;
  phases: Record<Phase, number>;
  totalS: number;
  /** Undefined where only the program knows. */
  stepsLost: number | undefined;
  at: string;
  attempt: number;
  generation: number;
}

export interface Boundary {
  generation: number;
  attempt: number;
  step: number;
  at: string;
  cause: string;
  members: number;
}

export interface Checkpoint {
  seq: number;
  attempt: number;
  step: number;
  at: string;
}

export function lostWorkers(events: readonly JobEvent[]): Lost[] {
  return events
    .filter((event) => event.type === "worker.lost")
    .flatMap((event) => {
      const step = numeric(event.data, "step");
      if (step === undefined) return [];
      const { seq, at, attempt, generation } = event;
      return [
        {
          seq,
          at,
          attempt,
          generation,
          step,
          worker: words(event.data, "worker"),
          cause: words(event.data, "cause"),
        },
      ];
    });
}

/** Every `recovered` event with the losses of its attempt that it made good. */
export function recoveries(events: readonly JobEvent[]): Recovery[] {
  let open: Lost[] = [];
  return events.flatMap((event) => {
    if (event.type === "worker.lost") open = [...open, ...lostWorkers([event])];
    if (event.type !== "recovered") return [];
    const mine = open.filter((lost) => lost.attempt === event.attempt);
    open = [];
    return [recovery(event, mine)];
  });
}

/** Where each generation begins. */
export function boundaries(events: readonly JobEvent[]): Boundary[] {
  return events
    .filter((event) => event.type === "generation.formed")
    .flatMap((event) => {
      const step = numeric(event.data, "step");
      if (step === undefined) return [];
      const { generation, attempt, at } = event;
      return [
        { generation, attempt, step, at, cause: words(event.data, "cause"), members: memberCount(event.data) },
      ];
    });
}

export function checkpoints(events: readonly JobEvent[]): Checkpoint[] {
  return events
    .filter((event) => event.type === "checkpoint.saved")
    .flatMap(({ seq, attempt, at, data }) => {
      const step = numeric(data, "step");
      return step === undefined ? [] : [{ seq, attempt, step, at }];
    });
}

export type Tone = "bad" | "good" | "warn" | "info" | "plain";

/** One event as a sentence and its tone. */
export function describe(event: JobEvent): { title: string; detail: string; tone: Tone } {
  const { data } = event;
  const step = numeric(data, "step");
  const where = step === undefined ? "" : ` at step ${step.toLocaleString("en-US")}`;
  if (event.type === "worker.lost") {
    const who = `Worker ${words(data, "worker")} lost${where}`;
    const phase = words(data, "phase");
    const cause = [words(data, "cause"), words(data, "why")].filter(Boolean).join(": ");
    const detail = listed([cause, phase && `in ${phase}`, rankAndPid(data)]);
    return { title: who, detail, tone: "bad" };
  }
  if (event.type === "worker.explained") {
    return { title: `Why worker ${words(data, "worker")} died`, detail: words(data, "cause"), tone: "bad" };
  }
  if (event.type === "worker.stalled") {
    const since = duration(numeric(data, "since_s") ?? 0);
    const title = `Worker ${words(data, "worker")} is making no progress${where}`;
    return { title, detail: listed([`${since} in ${words(data, "phase")}`, rankAndPid(data)]), tone: "warn" };
  }
  if (event.type === "worker.slow") {
    const own = duration(numeric(data, "step_s") ?? 0);
    const others = duration(numeric(data, "others_s") ?? 0);
    const detail = listed([`${own} per step, the others ${others}`, rankAndPid(data)]);
    return { title: `Worker ${words(data, "worker")} is slow${where}`, detail, tone: "warn" };
  }
  if (event.type === "worker.astray") {
    const title = `Worker ${words(data, "worker")} is being healed: ${words(data, "what")} differs`;
    return { title, detail: words(data, "why"), tone: "warn" };
  }
  if (event.type === "member.differed") {
    const title = `Worker ${words(data, "worker")} was corrected: ${words(data, "what")} differed`;
    return { title, detail: words(data, "why"), tone: "warn" };
  }
  if (event.type === "program.differs") {
    const title = `${words(data, "variable")} has a different value when its lines run again`;
    return { title, detail: listed([words(data, "line"), words(data, "cure")]), tone: "warn" };
  }
  if (event.type === "boundary.unrecorded") {
    const variable = words(data, "variable");
    const title = variable
      ? `${variable} depends on weights that are not recorded`
      : "Lines between loops depend on weights that are not recorded";
    return { title, detail: listed([words(data, "line"), words(data, "cure")]), tone: "warn" };
  }
  if (event.type === "supervisor.silent") {
    const why = data.reason as { message?: string } | undefined;
    return { title: "The supervisor is silent", detail: why?.message ?? "", tone: "bad" };
  }
  if (event.type === "fault.injected") {
    const title = `Fault injected into ${words(data, "target")}: ${words(data, "fault")}`;
    return { title, detail: listed([words(data, "effect"), words(data, "who")]), tone: "warn" };
  }
  if (event.type === "worker.joined") {
    return {
      title: `Worker ${words(data, "worker")} joined${where}`,
      detail: rankAndPid(data),
      tone: "good",
    };
  }
  if (event.type === "worker.left") {
    const detail = listed([words(data, "cause"), words(data, "why"), rankAndPid(data)]);
    return { title: `Worker ${words(data, "worker")} left${where}`, detail, tone: "info" };
  }
  if (event.type === "supervisor.returned") {
    const gone = Array.isArray(data.gone) ? data.gone.map(text) : [];
    const others = gone.length > 0 ? `lost meanwhile: ${gone.join(", ")}` : "no worker was lost";
    return { title: "The supervisor was restarted", detail: listed([`start ${words(data, "start")}`, others]), tone: "info" };
  }
  if (event.type === "generation.formed") {
    const size = plural(memberCount(data), "member");
    return {
      title: `Generation ${event.generation} formed`,
      detail: listed([size, words(data, "cause")]),
      tone: "info",
    };
  }
  if (event.type === "workers.resized") {
    const title = `Resized to ${words(data, "min")}–${words(data, "max")} workers`;
    return { title, detail: rest(data, ["min", "max", "who"]), tone: "info" };
  }
  if (event.type === "labels.changed") {
    const put = Object.entries((data.set ?? {}) as Record<string, unknown>).map(([key, value]) => `${key}=${text(value)}`);
    const removed = Array.isArray(data.removed) ? data.removed.map((key) => `without ${text(key)}`) : [];
    return { title: "Labels changed", detail: listed([...put, ...removed]), tone: "plain" };
  }
  if (event.type === "requirements.installing") {
    const title = `Installing packages from ${words(data, "from")}`;
    return { title, detail: rest(data, ["from"]), tone: "plain" };
  }
  if (event.type === "requirements.installed") {
    const names = Array.isArray(data.packages) ? data.packages.map(text) : [];
    const took = duration(numeric(data, "took_s") ?? 0);
    return { title: `${plural(names.length, "package")} installed in ${took}`, detail: names.join(", "), tone: "plain" };
  }
  if (event.type === "warning") return { title: words(data, "message"), detail: words(data, "hint"), tone: "warn" };
  if (event.type === "exchange.chosen") {
    const title = `Buckets summed by ${words(data, "algorithm")}`;
    return { title, detail: listed(ways(data)), tone: "info" };
  }
  if (event.type === "checkpoint.saved" || event.type === "checkpoint.restored") {
    const saved = event.type === "checkpoint.saved";
    const size = numeric(data, "size_bytes");
    const detail = listed([size === undefined ? "" : bytes(size), stepsLost(data), words(data, "uri")]);
    return { title: `Checkpoint ${saved ? "saved" : "restored"}${where}`, detail, tone: saved ? "plain" : "good" };
  }
  if (event.type === "artifact.saved") {
    const size = numeric(data, "size_bytes");
    return { title: `Saved ${words(data, "file")}`, detail: size === undefined ? "" : bytes(size), tone: "plain" };
  }
  if (event.type === "artifact.failed") {
    const detail = listed([words(data, "why"), words(data, "hint")]);
    return { title: `${words(data, "file")} could not be saved`, detail, tone: "warn" };
  }
  if (event.type === "checkpoint.none") {
    return { title: "The attempt starts without a checkpoint", detail: stepsLost(data), tone: "warn" };
  }
  if (event.type === "checkpoint.failed" || event.type === "checkpoint.skipped") {
    const what = event.type === "checkpoint.failed" ? "could not be written" : "was skipped";
    return { title: `A checkpoint ${what}`, detail: words(data, "why"), tone: "warn" };
  }
  if (event.type === "recovered") return recovered(event);
  if (event.type.startsWith("job.")) return stateChange(event);
  return { title: event.type, detail: rest(data), tone: "plain" };
}

/** What an attempt that begins behind the last one's end trains again. */
function stepsLost(data: Record<string, unknown>): string {
  const lost = numeric(data, "steps_lost");
  return lost ? plural(lost, "step") + " lost" : "";
}

/** What a recovery cost in steps. A hosted program starts anew, and only it knows from where. */
export function recoveredSteps(lost: number | undefined): string {
  return lost === undefined ? "the program started anew" : `${plural(lost, "step")} lost`;
}

function recovered(event: JobEvent): { title: string; detail: string; tone: Tone } {
  const lost = recoveredSteps(numeric(event.data, "steps_lost"));
  const total = numeric(event.data, "total_s");
  const title = total === undefined ? "Recovered" : `Recovered in ${duration(total)}`;
  const phases = PHASES.flatMap((phase) => {
    const seconds = numeric(event.data, `${phase}_s`);
    return seconds === undefined ? [] : [`${phase} ${duration(seconds)}`];
  });
  return { title, detail: listed([lost, ...phases]), tone: "good" };
}

function stateChange(event: JobEvent): { title: string; detail: string; tone: Tone } {
  const state = event.type.slice(4);
  const tones: Record<string, Tone> = {
    failed: "bad",
    succeeded: "good",
    recovering: "warn",
    running: "info",
  };
  const { who } = event.data;
  const why = gist(words(event.data, "message") || words(nested(event.data, "reason"), "message"));
  const by = typeof who === "string" ? `by ${OURS.has(who) ? `the ${who}` : who}` : "";
  return {
    title: `Job ${state}`,
    detail: sentence(why) || listed([by, rest(event.data, ["who", "from"])]),
    tone: tones[state] ?? "plain",
  };
}

function recovery(event: JobEvent, lost: Lost[]): Recovery {
  const { seq, at, attempt, generation, data } = event;
  const phases = Object.fromEntries(PHASES.map((phase) => [phase, numeric(data, `${phase}_s`) ?? 0]));
  const until = numeric(data, "step") ?? lost.at(-1)?.step ?? 0;
  const named = words(data, "worker");
  return {
    seq,
    at,
    attempt,
    generation,
    until,
    step: Math.min(lost[0]?.step ?? until, until),
    workers: lost.length > 0 ? lost.map((one) => one.worker) : named ? [named] : [],
    cause: lost[0]?.cause ?? words(data, "cause"),
    phases: phases as Record<Phase, number>,
    totalS: numeric(data, "total_s") ?? Object.values(phases).reduce((sum, part) => sum + part, 0),
    stepsLost: numeric(data, "steps_lost"),
  };
}

/** `25.0 MB × 3 buckets: ring` for every schedule of an `exchange.chosen` event. */
function ways(data: Record<string, unknown>): string[] {
  if (!Array.isArray(data.ways)) return [];
  return data.ways.map((way: Record<string, unknown>) => {
    const [least, most] = [bytes(numeric(way, "least_bytes") ?? 0), bytes(numeric(way, "most_bytes") ?? 0)];
    const name = way.schedule === "in_place" ? "in place (shared memory)" : words(way, "schedule");
    const sizes = least === most ? most : `${least} to ${most}`;
    return `${sizes} × ${plural(numeric(way, "buckets") ?? 0, "bucket")}: ${name}`;
  });
}

function memberCount(data: Record<string, unknown>): number {
  if (Array.isArray(data.members)) return data.members.length;
  return numeric(data, "members") ?? numeric(data, "world_size") ?? 0;
}

function rankAndPid(data: Record<string, unknown>): string {
  const { rank, pid, node: id, address } = data;
  const named = Object.entries({ rank, pid, node: typeof address === "string" && address ? address : typeof id === "string" ? shortId(id) : id });
  return listed(named.flatMap(([key, value]) => (value === undefined || value === null ? [] : [`${key} ${text(value)}`])));
}

function rest(data: Record<string, unknown>, without: readonly string[] = []): string {
  const told = Object.entries(data).filter(
    ([key, value]) => value !== null && value !== "" && !without.includes(key),
  );
  return listed(told.map(([key, value]) => `${key} ${text(value)}`));
}

function listed(parts: string[]): string {
  return parts.filter((part) => part !== "").join(" · ");
}

function numeric(data: Record<string, unknown>, key: string): number | undefined {
  const value = data[key];
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

function words(data: Record<string, unknown>, key: string): string {
  const value = data[key];
  return value === undefined || value === null || typeof value === "object" ? "" : text(value);
}

function nested(data: Record<string, unknown>, key: string): Record<string, unknown> {
  const value = data[key];
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function text(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
