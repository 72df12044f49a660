/** A numbered feed (events, logs): pages until level, then a stream, or polling where streaming fails. */
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { ApiError, feedPage, feedStream } from "./api";
import { messages } from "./sse";

const PAGE = 500;
const SILENCE_MS = 45_000;
const POLL_MS = 2_000;

export interface Numbered {
  seq: number;
}

/** Join what is known with what arrived: in order of seq, each once, the newest `cap` kept. */
export function merge<T extends Numbered>(
  known: readonly T[],
  arrived: readonly T[],
  cap = Infinity,
): readonly T[] {
  const last = known.at(-1)?.seq ?? -Infinity;
  const fresh = arrived.filter((item) => item.seq > last).sort((a, b) => a.seq - b.seq);
  const once = fresh.filter((item, at) => at === 0 || item.seq !== fresh[at - 1]?.seq);
  if (once.length === 0) return known;
  const all = [...known, ...once];
  return all.length > cap ? all.slice(all.length - cap) : all;
}

export interface Feed<T> {
  items: readonly T[];
  /** Whether the first pages have been read. */
  loaded: boolean;
  how: "stream" | "poll" | "ended";
}

/** Follow `path` while `live` and the page is visible; once it is not live any more, read to the end and stop. */
export function useFeed<T extends Numbered>(path: string, live: boolean, cap = Infinity): Feed<T> {
  const [feed, setFeed] = useState<{ path: string } & Feed<T>>({
    path,
    items: [],
    loaded: false,
    how: "poll",
  });
  const read = useRef({ path, after: 0 });
  const visible = useVisible();
  useEffect(() => {
    if (!visible) return;
    const stop = new AbortController();
    if (read.current.path !== path) read.current = { path, after: 0 };
    const cursor = read.current;
    const change = (next: (was: Feed<T>) => Feed<T>): void => {
      if (stop.signal.aborted) return;
      setFeed((was) => ({
        path,
        ...next(was.path === path ? was : { items: [], loaded: false, how: "poll" }),
      }));
    };
    void follow<T>(cursor, live, stop.signal, {
      arrived: (items) => change((was) => ({ ...was, items: merge(was.items, items, cap) })),
      level: () => change((was) => ({ ...was, loaded: true })),
      by: (how) => change((was) => ({ ...was, how })),
    });
    return () => stop.abort();
  }, [path, live, visible, cap]);
  return feed.path === path ? feed : { items: [], loaded: false, how: "poll" };
}

interface Cursor {
  path: string;
  after: number;
}

type Take<T> = (items: T[]) => void;

interface Follower<T> {
  arrived: Take<T>;
  level: () => void;
  by: (how: Feed<T>["how"]) => void;
}

async function follow<T extends Numbered>(
  cursor: Cursor,
  live: boolean,
  signal: AbortSignal,
  tell: Follower<T>,
): Promise<void> {
  const take = (items: T[]): void => {
    if (signal.aborted) return;
    cursor.after = items.reduce((highest, item) => Math.max(highest, item.seq), cursor.after);
    tell.arrived(items);
  };
  while (!signal.aborted) {
    try {
      await catchUp(cursor, take, signal);
      tell.level();
      if (!live) {
        tell.by("ended");
        return;
      }
      await stream(cursor, take, () => tell.by("stream"), signal);
    } catch (error) {
      if (error instanceof ApiError && [401, 403, 404].includes(error.status)) return;
      tell.by("poll");
    }
    await pause(POLL_MS, signal);
  }
}

async function catchUp<T extends Numbered>(
  cursor: Cursor,
  take: Take<T>,
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    const page = await feedPage<T>(cursor.path, cursor.after, PAGE, signal);
    take(page.items);
    if (page.items.length === 0 || page.next === null || signal.aborted) return;
  }
}

async function stream<T extends Numbered>(
  cursor: Cursor,
  take: Take<T>,
  opened: () => void,
  signal: AbortSignal,
): Promise<void> {
  const response = await feedStream(cursor.path, cursor.after, signal);
  const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
  if (!isStream || response.body === null) throw new Error("the API does not stream this feed");
  opened();
  for await (const batch of messages(response.body, SILENCE_MS)) {
    take(batch.map((message) => JSON.parse(message.data) as T).filter((item) => Number.isFinite(item.seq)));
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
  });
}

function useVisible(): boolean {
  return useSyncExternalStore(
    (changed) => {
      document.addEventListener("visibilitychange", changed);
      return () => document.removeEventListener("visibilitychange", changed);
    },
    () => document.visibilityState !== "hidden",
  );
}
