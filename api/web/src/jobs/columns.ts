/** The columns that the job list can have, by their ids: the words that addresses and the API's `sort` use. */

export interface Known {
  id: string;
  title: string;
  /** Pixels; the name takes what is left. */
  width: number;
  sortable: boolean;
  /** Whether the greatest value is first at the first click. */
  greatestFirst: boolean;
  right: boolean;
}

const plain = (id: string, title: string, width: number): Known => ({
  ...{ id, title, width, sortable: false, greatestFirst: false, right: false },
});
const sortable = (id: string, title: string, width: number): Known => ({ ...plain(id, title, width), sortable: true });
const amount = (id: string, title: string, width: number): Known => ({
  ...{ ...sortable(id, title, width), greatestFirst: true, right: true },
});

export const NAME_WIDTH = 240;

export const KNOWN: readonly Known[] = [
  sortable("state", "State", 132),
  sortable("name", "Job", NAME_WIDTH),
  plain("progress", "Progress", 220),
  plain("workers", "Workers", 104),
  sortable("project", "Project", 120),
  sortable("owner", "Owner", 120),
  plain("labels", "Labels", 180),
  plain("id", "ID", 270),
  amount("priority", "Priority", 92),
  { ...plain("attempt", "Attempt", 84), right: true },
  amount("duration", "Run time", 116),
  amount("finished_at", "Ended", 112),
  amount("submitted_at", "Age", 112),
];

export const STANDARD = ["state", "name", "progress", "workers", "submitted_at"] as const;

export type Statistic = "last" | "min" | "max";

/** A metric's value, its curve, or a parameter of the job file. */
export type Drawn =
  | { kind: "metric"; name: string; statistic: Statistic }
  | { kind: "curve"; name: string }
  | { kind: "param"; name: string };

/** `metric:NAME:last`, `curve:NAME`, `param:KEY`; null for any other id. A name may have colons of its own. */
export function drawnBy(id: string): Drawn | null {
  const metric = /^metric:(.+):(last|min|max)$/.exec(id);
  if (metric?.[1]) return { kind: "metric", name: metric[1], statistic: metric[2] as Statistic };
  const other = /^(curve|param):(.+)$/.exec(id);
  return other?.[2] ? { kind: other[1] as "curve" | "param", name: other[2] } : null;
}

export function column(id: string): Known | null {
  const drawn = drawnBy(id);
  if (drawn === null) return KNOWN.find((known) => known.id === id) ?? null;
  const name = drawn.name.replaceAll("_", " ");
  if (drawn.kind === "metric") return { ...amount(id, `${name} ${drawn.statistic}`, 130), greatestFirst: false };
  return plain(id, name, drawn.kind === "curve" ? 172 : 120);
}

export function isColumn(id: string): boolean {
  return column(id) !== null;
}

/** The metrics whose values these columns show, as many as the API gives at once. */
export function metricsOf(ids: readonly string[]): string[] {
  return namesOf(ids, "metric").slice(0, 10);
}

export function curvesOf(ids: readonly string[]): string[] {
  return namesOf(ids, "curve").slice(0, 20);
}

/** With the column where it was not, and without it where it was. */
export function flipped(ids: readonly string[], id: string): string[] {
  return ids.includes(id) ? ids.filter((one) => one !== id) : [...ids, id];
}

function namesOf(ids: readonly string[], kind: Drawn["kind"]): string[] {
  const drawn = ids.map(drawnBy).filter((one) => one?.kind === kind);
  return [...new Set(drawn.map((one) => one?.name ?? ""))];
}
