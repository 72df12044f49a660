/** What the job file's schema says about a place in its text: keys, values, words. The schema is the API's own. */

export interface Schema {
  $ref?: string;
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  properties?: Record<string, Schema>;
  /** What the API says of a job, and nobody has to write. */
  readOnly?: boolean;
  minimum?: number;
  maximum?: number;
}

export type Schemas = Readonly<Record<string, Schema>>;

export interface Place {
  /** The keys that the line stands below. */
  path: readonly string[];
  /** The key of the line, once its colon is there. */
  key: string | null;
}

const KEY = /^(\s*)(?:- )?([\w.-]+)\s*:/;

/** Where a line (from 0) stands in YAML in block style: below the nearest lines above that are indented less. */
export function placeOf(lines: readonly string[], at: number): Place {
  const text = lines[at] ?? "";
  const own = KEY.exec(text);
  let margin = /^\s*/.exec(text)?.[0].length ?? 0;
  const path: string[] = [];
  for (let above = at - 1; above >= 0 && margin > 0; above--) {
    const found = KEY.exec(lines[above] ?? "");
    if (!found || (found[1]?.length ?? 0) >= margin) continue;
    margin = found[1]?.length ?? 0;
    path.unshift(found[2] ?? "");
  }
  return { path, key: own?.[2] ?? null };
}

/** A line with another value, or, with the `key` that it begins, ready for one. */
export function completed(line: string, value: string | null, key?: string): string {
  const margin = /^\s*(?:- )?/.exec(line)?.[0] ?? "";
  return `${margin}${key ?? KEY.exec(line)?.[2] ?? ""}: ${value ?? ""}`;
}

/** The keys of other lines (from 0) that stand below the same keys as this one. */
export function siblings(lines: readonly string[], at: number): ReadonlySet<string> {
  const own = placeOf(lines, at).path.join("/");
  const places = lines.flatMap((_, line) => (line === at ? [] : [placeOf(lines, line)]));
  return new Set(places.flatMap(({ path, key }) => (key !== null && path.join("/") === own ? [key] : [])));
}

/** The part of the schema that a path leads to; null where it knows nothing of it. */
export function partAt(schemas: Schemas, path: readonly string[]): Schema | null {
  return path.reduce<Schema | null>((part, key) => objectIn(schemas, part)?.properties?.[key] ?? null, schemas.JobSpec ?? null);
}

/** The keys that can stand below a path. */
export function keysAt(schemas: Schemas, path: readonly string[]): { key: string; part: Schema }[] {
  const known = objectIn(schemas, partAt(schemas, path))?.properties ?? {};
  return Object.entries(known).flatMap(([key, part]) => (part.readOnly ? [] : [{ key, part }]));
}

/** The values that a key can have, where they can be listed. */
export function valuesAt(schemas: Schemas, path: readonly string[]): string[] {
  const part = partAt(schemas, path);
  const values = part === null ? [] : choices(schemas, part).flatMap((one) => one.enum ?? (one.type === "boolean" ? [true, false] : []));
  return [...new Set(values.map(String))];
}

/** A part in words: its type, its default, its bounds, what it is. */
export function told(schemas: Schemas, part: Schema): string {
  const parts = choices(schemas, part);
  const kinds = parts.flatMap((one) => (one.enum ? [one.enum.join(", ")] : one.type === "null" || !one.type ? [] : [one.type]));
  const [low, high] = [parts.find((one) => one.minimum !== undefined)?.minimum, parts.find((one) => one.maximum !== undefined)?.maximum];
  const bounds = low === undefined && high === undefined ? "" : `from ${low ?? "any"} to ${high ?? "any"}`;
  const plain = typeof part.default === "object" || part.default === undefined ? "" : `default: ${JSON.stringify(part.default)}`;
  const words = [kinds.join(" or "), bounds, plain].filter(Boolean).join("; ");
  const about = part.description ?? parts.find((one) => one.description)?.description ?? "";
  return [words, about.split("\n\n")[0]].filter(Boolean).join("\n");
}

/** The keys of a job file whose values are not the schema's defaults: what somebody has said of the job. */
export function saidIn(schemas: Schemas, spec: Readonly<Record<string, unknown>>, of: Schema | null = schemas.JobSpec ?? null): Record<string, unknown> {
  const known = objectIn(schemas, of)?.properties ?? {};
  const said = Object.entries(spec).flatMap(([key, value]): [string, unknown][] => {
    const part = known[key];
    if (part === undefined || !("default" in part)) return [[key, value]];
    if (alike(value, part.default)) return [];
    const below = isMapping(value) && objectIn(schemas, part) !== null;
    return [[key, below ? saidIn(schemas, value, part) : value]];
  });
  return Object.fromEntries(said);
}

function isMapping(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether two JSON values are the same, in whatever order their keys stand. */
function alike(one: unknown, other: unknown): boolean {
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return one === other;
  const [keys, others] = [Object.entries(one), Object.entries(other)];
  const theirs = new Map<string, unknown>(others);
  return Array.isArray(one) === Array.isArray(other) && keys.length === others.length && keys.every(([key, value]) => theirs.has(key) && alike(value, theirs.get(key)));
}

function objectIn(schemas: Schemas, part: Schema | null): Schema | null {
  return part === null ? null : (choices(schemas, part).find((one) => one.properties !== undefined) ?? null);
}

/** The alternatives of a part, without references. */
function choices(schemas: Schemas, part: Schema): Schema[] {
  if (part.$ref !== undefined) return choices(schemas, schemas[part.$ref.split("/").at(-1) ?? ""] ?? {});
  const among = part.anyOf ?? part.oneOf;
  return among ? among.flatMap((one) => choices(schemas, one)) : [part];
}
