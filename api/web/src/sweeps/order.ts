/** The order of a leaderboard, as the address says it: a column, with a leading `-` the greatest first. Pure. */

export interface Order {
  sort?: string | undefined;
}

export function orderOf(query: Record<string, unknown>): Order {
  return typeof query.sort === "string" && query.sort !== "" ? { sort: query.sort } : {};
}
