/** The columns that the job list can have, by their ids: the words that addresses use. */

export interface Known {
  id: string;
  title: string;
  /** Pixels; the name takes what is left. */
  width: number;
  /** The word by which the API sorts by it; null: it does not. */
  order: string | null;
  /** Whether the greatest value is first at the first click. */
  greatestFirst: boolean;
  right: boolean;
}

const sortable = (id: string, title: string, width: number, order: string | null = id): Known => ({
  ...{ id, title, width, order, greatestFirst: false, right: false },
});
const amount = (id: string, title: string, width: number): Known => ({
  ...{ ...sortable(id, title, width), greatestFirst: true, right: true },
});

export const NAME_WIDTH = 240;

export const KNOWN: readonly Known[] = [
  sortable("state", "State", 132),
  sortable("name", "Job", NAME_WIDTH),
  { ...sortable("progress", "Progress", 220, "step"), greatestFirst: true },
  { ...sortable("workers", "Workers", 104), greatestFirst: true },
  sortable("project", "Project", 120),
  sortable("owner", "Owner", 120),
  sortable("labels", "Labels", 180, null),
  sortable("id", "ID", 270, "submitted_at"),
  amount("priority", "Priority", 92),
  amount("attempt", "Attempt", 84),
  amount("duration", "Run time", 116),
  amount("finished_at", "Ended", 112),
  amount("submitted_at", "Age", 112),
];

export const STANDARD = ["state", "name", "progress", "workers", "submitted_at"] as const;

export type Statistic = "last" | "min" | "max";

/** A metric's value, its curve, a parameter of the job file, or a label. */
export type Drawn =
  | { kind: "metric"; name: string; statistic: Statistic }
  | { kind: "curve" | "param" | "label"; name: string };

/** `metric:NAME:last`, `curve:NAME`, `param:KEY`, `label:KEY`; null for any other id. A name may have colons of its own. */
export function drawnBy(id: string): Drawn | null {
  const metric = /^metric:(.+):(last|min|max)$/.exec(id);
  if (metric?.[1]) return { kind: "metric", name: metric[1], statistic: metric[2] as Statistic };
  const other = /^(curve|param|label):(.+)$/.exec(id);
  return other?.[2] ? { kind: other[1] as "curve" | "param" | "label", name: other[2] } : null;
}

export function column(id: string): Known | null {
  const drawn = drawnBy(id);
  if (drawn === null) return KNOWN.find((known) => known.id === id) ?? null;
  const name = drawn.name.replaceAll("_", " ");
  if (drawn.kind === "metric") return { ...amount(id, `${name} ${drawn.statistic}`, 130), greatestFirst: false };
  // A curve by its newest value.
  if (drawn.kind === "curve") return sortable(id, name, 172, `metric:${drawn.name}:last`);
  return sortable(id, name, 120);
}

/** The order after a click on the column's head: one way, the other, and none of its own. */
export function sortedNext({ order, greatestFirst }: Known, sort: string): string | undefined {
  const [first, second] = greatestFirst ? [`-${order}`, `${order}`] : [`${order}`, `-${order}`];
  return sort === first ? second : sort === second ? undefined : first;
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
