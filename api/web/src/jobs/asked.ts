/** What the address of the job list asks for: which jobs, in which order, with which columns. The API's own words. */
import { parseQuery, queryText, type Query } from "../address";
import { listed, listOf } from "../lists";
import { STATES, type State } from "../wire";
import { isColumn, metricsOf, STANDARD } from "./columns";

/** What is not asked for is undefined. */
export interface Asked {
  search?: string | undefined;
  state?: State | undefined;
  project?: string | undefined;
  owner?: string | undefined;
  /** key=value each; a job has all of them. */
  label?: string[] | undefined;
  param?: string[] | undefined;
  /** A column's id; `-` before it: the greatest first. */
  sort?: string | undefined;
  /** Ids of columns, separated by commas. */
  columns?: string | undefined;
  /** `label:KEY` or `param:KEY`: the jobs are shown in groups of equal values. */
  group?: string | undefined;
  /** The filters of the groups whose jobs are shown. */
  open?: string[] | undefined;
}

export const NEWEST_FIRST = "-submitted_at";
const SORTED =
  /^-?(submitted_at|name|state|owner|project|priority|finished_at|duration|step|workers|attempt|metric:.+:(last|min|max)|(param|label):.+)$/;

const GROUPED = /^(label|param):./;

/** All keys are there, so that what is not valid in an address does not stay behind what is. */
export function askedOf(query: Query | Record<string, unknown>): Asked {
  const { state, sort, columns } = query;
  const group = one(query.group);
  const grouped = group !== undefined && GROUPED.test(group);
  const named = listOf(listed(one(columns)).filter(isColumn));
  return {
    search: one(query.search),
    state: STATES.find((known) => known === state),
    project: one(query.project),
    owner: one(query.owner),
    label: pairs(query.label),
    param: pairs(query.param),
    sort: typeof sort === "string" && SORTED.test(sort) && sort !== NEWEST_FIRST ? sort : undefined,
    columns: one(named),
    group: grouped ? group : undefined,
    open: grouped ? pairs(query.open) : undefined,
  };
}

/** What an address asks for that is no part of a list: unknown keys, and values that a key cannot have. */
export function notUnderstood(query: Query): string[] {
  const said = parseQuery(queryText({ ...askedOf(query) }));
  return Object.entries(query).flatMap(([key, given]) => {
    if (key === "columns") return listed([given].flat().join(",")).flatMap((id) => (isColumn(id) ? [] : [`columns=${id}`]));
    const kept = [said[key] ?? [], key === "sort" ? NEWEST_FIRST : []].flat();
    return [given].flat().flatMap((value) => (value === "" || kept.includes(value) ? [] : [`${key}=${value}`]));
  });
}

export const NOTHING_ASKED: Asked = askedOf({});

/** The ids of the columns to show. */
export function columnsAsked(asked: Pick<Asked, "columns">): string[] {
  return asked.columns === undefined ? [...STANDARD] : listed(asked.columns);
}

/** The columns as an address says them: the standard ones are not said. */
export function columnsSaid(ids: readonly string[]): string | undefined {
  const said = listOf(ids);
  return said === listOf(STANDARD) || said === "" ? undefined : said;
}

/** The groups as the API is asked for them, without the order of jobs; null: the jobs are not in groups. */
export function groupQuery(asked: Asked) {
  if (asked.group === undefined) return null;
  return { ...listQuery({ ...asked, sort: undefined }), by: asked.group };
}

/** The jobs of the group with this filter. */
export function inGroup(asked: Asked, filter: string): Asked {
  const kind = asked.group?.startsWith("param:") ? "param" : "label";
  return { ...asked, group: undefined, open: undefined, [kind]: [...new Set([...(asked[kind] ?? []), filter])] };
}

/** With this group open where it was shut, and shut where it was open. */
export function opened({ open = [] }: Asked, filter: string): Pick<Asked, "open"> {
  const now = open.includes(filter) ? open.filter((one) => one !== filter) : [...open, filter];
  return { open: now.length > 0 ? now : undefined };
}

/** What the API is asked. */
export function listQuery(asked: Asked) {
  const { search, state, project, owner, label, param, sort } = asked;
  const metrics = listOf(metricsOf(columnsAsked(asked))) || undefined;
  return { search, state, project, owner, label, param, sort, metrics };
}

export interface Narrowing {
  words: string;
  without: Partial<Asked>;
}

/** Each filter in words, and what to change to be without it. The state has its own buttons, the search its field. */
export function narrowings({ project, owner, label, param }: Asked): Narrowing[] {
  const drop = (all: string[], one: string) => pairs(all.filter((other) => other !== one));
  return [
    ...(project ? [{ words: `project: ${project}`, without: { project: undefined } }] : []),
    ...(owner ? [{ words: `owner: ${owner}`, without: { owner: undefined } }] : []),
    ...(label ?? []).map((one) => ({ words: one, without: { label: drop(label ?? [], one) } })),
    ...(param ?? []).map((one) => ({ words: `param ${one}`, without: { param: drop(param ?? [], one) } })),
  ];
}

/** Whether it is key=value, or !key. */
export function isPair(text: string): boolean {
  return /^([^=]+=|!.)/.test(text);
}

function one(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function pairs(value: unknown): string[] | undefined {
  const given = (Array.isArray(value) ? value : [value]) as unknown[];
  const valid = given.filter((item): item is string => typeof item === "string" && isPair(item));
  return valid.length > 0 ? [...new Set(valid)] : undefined;
}
