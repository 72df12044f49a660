/** A trace in Chrome's format as rows of spans: for each thread of each worker a row a depth. Pure. */
import type { Range } from "../plot/lines";

export interface Span {
  name: string;
  /** Microseconds since the trace began. */
  from: number;
  until: number;
  args: Record<string, unknown>;
}

/** Spans of one depth, by their beginnings; none overlaps another. */
export interface Row {
  thread: string;
  depth: number;
  spans: readonly Span[];
}

interface Event {
  ph: string;
  name: string;
  pid: number;
  tid: number;
  ts: number;
  dur: number;
  args?: Record<string, unknown>;
}

export function rowsOf(text: string): Row[] {
  const { traceEvents: events } = JSON.parse(text) as { traceEvents: Event[] };
  const names = new Map<string, string>();
  const threads = new Map<string, Span[]>();
  for (const { ph, name, pid, tid, ts, dur, args = {} } of events) {
    const thread = `${pid}/${tid}`;
    if (ph === "M") names.set(name === "process_name" ? String(pid) : thread, String(args.name));
    else threads.set(thread, threads.get(thread) ?? []).get(thread)?.push({ name, from: ts, until: ts + dur, args });
  }
  return [...threads].flatMap(([thread, spans]) => {
    const words = `${names.get(thread.split("/")[0] ?? "") ?? ""} ${names.get(thread) ?? thread}`;
    return depthsOf(spans).map((row, depth): Row => ({ thread: words, depth, spans: row }));
  });
}

/** One inside of another is a row below it. */
function depthsOf(spans: readonly Span[]): Span[][] {
  const rows: Span[][] = [];
  for (const span of spans.toSorted((a, b) => a.from - b.from || b.until - a.until)) {
    const free = rows.find((row) => (row.at(-1)?.until ?? 0) <= span.from);
    if (free) free.push(span);
    else rows.push([span]);
  }
  return rows;
}

export function wholeOf(rows: readonly Row[]): Range {
  const firsts = rows.map(({ spans }) => spans[0]?.from ?? 0);
  return [Math.min(...firsts), Math.max(...rows.map(({ spans }) => spans.at(-1)?.until ?? 0))];
}

export function within({ spans }: Row, [from, until]: Range): Span[] {
  return spans.filter((span) => span.until > from && span.from < until);
}

/** How often each name is in the stretch and its microseconds there, by thread, the longest first; all steps are one name. */
export function sumsOf(rows: readonly Row[], stretch: Range): { thread: string; name: string; count: number; us: number }[] {
  const found = new Map<string, ReturnType<typeof sumsOf>[number]>();
  for (const row of rows) {
    for (const span of within(row, stretch)) {
      const name = span.name.startsWith("step ") ? "step" : span.name;
      const sum = found.get(`${row.thread} ${name}`) ?? { thread: row.thread, name, count: 0, us: 0 };
      sum.count += 1;
      sum.us += Math.min(span.until, stretch[1]) - Math.max(span.from, stretch[0]);
      found.set(`${row.thread} ${name}`, sum);
    }
  }
  return [...found.values()].sort((a, b) => b.us - a.us);
}
