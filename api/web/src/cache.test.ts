import { expect, test } from "vitest";
import { ApiError } from "./api";
import { every, mayHeal, newCache, retryDelay } from "./cache";

test("asking again slows down after errors but never stops", () => {
  expect([0, 1, 2, 3, 9].map(retryDelay)).toEqual([1000, 2000, 4000, 8000, 15_000]);
  expect([0, 500, 503, 401, 403, 404, 422].filter((status) => mayHeal(new ApiError({ status })))).toEqual([0, 500, 503]);
});

test("what is not there is not asked for again and again", async () => {
  const cache = newCache();
  const queryFn = () => Promise.reject(new ApiError({ status: 404 }));
  await cache.query({ queryKey: ["gone"], queryFn, retry: (_, error) => mayHeal(error) }).catch(() => undefined);
  const query = cache.getQueryCache().find({ queryKey: ["gone"] });
  expect(query && every(1000)(query)).toBe(false);
  expect(every(1000)({ state: { status: "pending" } })).toBe(1000);
});
