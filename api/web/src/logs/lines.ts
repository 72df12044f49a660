/** Log lines: which are wanted, of which attempt each is, and all of them as text. Pure. */
import type { JobEvent, LogLine } from "../wire";

export interface Wanted {
  worker: string;
  level: string;
  /** "" is every attempt, as for the others. */
  attempt: string;
  text: string;
}

export const ALL: Wanted = { worker: "", level: "", attempt: "", text: "" };

/** When an attempt began, in milliseconds; in order. */
export type Beginnings = readonly { attempt: number; at: number }[];

export function beginningsOf(events: readonly JobEvent[]): Beginnings {
  const found = new Map<number, number>();
  for (const { attempt, at } of events) if (attempt > 0 && !found.has(attempt)) found.set(attempt, Date.parse(at));
  return [...found].map(([attempt, at]) => ({ attempt, at })).sort((a, b) => a.at - b.at);
}

/** Lines carry no attempt: it is the one that had begun. */
export function attemptOf({ at }: Pick<LogLine, "at">, beginnings: Beginnings): number {
  const when = Date.parse(at);
  return (beginnings.findLast((one) => one.at <= when) ?? beginnings[0])?.attempt ?? 1;
}

export function wantedOf(lines: readonly LogLine[], wanted: Wanted, beginnings: Beginnings): LogLine[] {
  const text = wanted.text.toLowerCase();
  return lines.filter(
    (line) =>
      (!wanted.worker || line.worker === wanted.worker) &&
      (!wanted.level || line.level === wanted.level) &&
      (!wanted.attempt || attemptOf(line, beginnings) === Number(wanted.attempt)) &&
      (!text || line.line.toLowerCase().includes(text)),
  );
}

/** The newest `most` lines; with a line to show those around it. */
export function windowOf(lines: readonly LogLine[], around: number | null, most: number): readonly LogLine[] {
  const place = around === null ? -1 : lines.findIndex((line) => line.seq >= around);
  if (place < 0) return lines.slice(-most);
  const from = Math.max(0, Math.min(place - Math.floor(most / 4), lines.length - most));
  return lines.slice(from, from + most);
}

/** A text in pieces, every second of which is a hit of the search. */
export function pieces(line: string, text: string): string[] {
  if (text === "") return [line];
  const found: string[] = [];
  const [low, sought] = [line.toLowerCase(), text.toLowerCase()];
  let from = 0;
  // Lower case of a few letters is longer than they are: their places would not fit.
  if (low.length !== line.length) return [line];
  for (let at = low.indexOf(sought); at >= 0; at = low.indexOf(sought, from)) {
    found.push(line.slice(from, at), line.slice(at, at + sought.length));
    from = at + sought.length;
  }
  return [...found, line.slice(from)];
}

export function asText(lines: readonly LogLine[]): string {
  return lines.map(({ at, worker, level, line }) => `${at} ${worker} ${level} ${line}\n`).join("");
}
