/** What the page has read: one cache for all views; again after errors, ever more slowly, and not while it is hidden. */
import { QueryClient } from "@tanstack/react-query";
import { ApiError } from "./api";

const SLOWEST_MS = 15_000;

declare module "@tanstack/react-query" {
  interface Register {
    defaultError: ApiError;
  }
}

export function newCache(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        // The control plane may be on this machine: it is reached without any network.
        networkMode: "always",
        retry: (_, error) => mayHeal(error),
        retryDelay,
      },
      mutations: { networkMode: "always" },
    },
  });
}

export function retryDelay(failures: number): number {
  return Math.min(SLOWEST_MS, 1000 * 2 ** failures);
}

/** Whether asking again may help: nobody answered, or the control plane was in trouble. */
export function mayHeal(error: ApiError): boolean {
  return error.status === 0 || error.status >= 500;
}

/** A `refetchInterval`: none after an answer that stays as it is, such as that there is nothing of that name. */
export function every(ms: number) {
  return ({ state }: { state: { status: string } }): number | false => state.status !== "error" && ms;
}
