/** Job files side by side: only the keys in which they differ. Pure. */

/** A key's path and its value in each file, as JSON; undefined where a file does not have it. */
export interface Difference {
  path: string;
  values: (string | undefined)[];
}

/** What differs between job files by nature. */
const NAMES = new Set(["name"]);

export function differences(files: readonly Record<string, unknown>[]): Difference[] {
  const flat = files.map((file) => new Map(leaves(file, "")));
  const paths = [...new Set(flat.flatMap((one) => [...one.keys()]))].sort();
  return paths
    .filter((path) => !NAMES.has(path))
    .map((path) => ({ path, values: flat.map((one) => one.get(path)) }))
    .filter(({ values }) => values.some((value) => value !== values[0]));
}

function leaves(value: unknown, path: string): [string, string][] {
  // Lists are compared as they are: their items have no keys by which to lay them side by side.
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [[path, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([key, each]) => leaves(each, path === "" ? key : `${path}.${key}`));
}
