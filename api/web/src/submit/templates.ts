/** The job files of the recipes, each read when it is chosen. */

const FILES = import.meta.glob<string>("../../../../jobs/ringleader_jobs/*.yaml", { query: "?raw", import: "default" });

/** By the recipe's name. */
export const TEMPLATES: ReadonlyMap<string, () => Promise<string>> = new Map(
  Object.entries(FILES).map(([path, load]) => [path.replace(/^.*\/|\.yaml$/g, ""), load]),
);
