/** Reading again and again: never two at a time, slower after errors, not while the page is hidden. */
import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { ApiError } from "./api";

const SLOWEST_MS = 15_000;

export interface Polled<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** When the last answer came, as `Date.now()`. */
  at: number;
  again: () => void;
}

interface Known<T> {
  read: unknown;
  data: T | undefined;
  error: ApiError | undefined;
  at: number;
}

/** How long to wait after an answer; null: not again. */
export type Pace<T> = (data: T | undefined) => number | null;

/** Poll `read` (both callbacks stable); what was read stays until the new answer or a new `read`. */
export function usePoll<T>(read: (signal: AbortSignal) => Promise<T>, pace: Pace<T>): Polled<T> {
  const [known, setKnown] = useState<Known<T>>({ read, data: undefined, error: undefined, at: 0 });
  const [round, setRound] = useState(0);
  const failures = useRef(0);
  const visible = useVisible();
  useEffect(() => {
    if (!visible) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let latest: T | undefined;
    const turn = async (): Promise<void> => {
      const result = await settle(read, stop.signal);
      if (stop.signal.aborted) return;
      failures.current = result.error ? failures.current + 1 : 0;
      const at = Date.now();
      setKnown((was) =>
        result.error ? { ...kept(was, read), error: result.error, at } : { read, at, ...result },
      );
      if (result.data !== undefined) latest = result.data;
      const everyMs = pace(latest);
      if (everyMs !== null) timer = setTimeout(() => void turn(), waitMs(everyMs, failures.current));
    };
    void turn();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [read, pace, visible, round]);
  const again = useCallback(() => setRound((was) => was + 1), []);
  const mine = known.read === read ? known : { data: undefined, error: undefined, at: known.at };
  return { data: mine.data, error: mine.error, at: mine.at, again };
}

export function waitMs(everyMs: number, failures: number): number {
  return Math.min(SLOWEST_MS, everyMs * 2 ** Math.min(failures, 4));
}

export function useVisible(): boolean {
  return useSyncExternalStore(
    (changed) => {
      document.addEventListener("visibilitychange", changed);
      return () => document.removeEventListener("visibilitychange", changed);
    },
    () => document.visibilityState !== "hidden",
  );
}

function kept<T>(was: Known<T>, read: unknown): Known<T> {
  return was.read === read ? was : { read, data: undefined, error: undefined, at: was.at };
}

async function settle<T>(
  read: (signal: AbortSignal) => Promise<T>,
  signal: AbortSignal,
): Promise<{ data: T; error: undefined } | { data: undefined; error: ApiError }> {
  try {
    return { data: await read(signal), error: undefined };
  } catch (error) {
    const known = error instanceof ApiError ? error : new ApiError({ status: 0, detail: String(error) });
    return { data: undefined, error: known };
  }
}
