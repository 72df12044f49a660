/** Requests about alerts: what was raised, and the rules of projects. Shapes of `ringleader.wire.alerts`. */
import { queryText } from "./address";
import { read, send } from "./api";
import { plural } from "./format";

export const ALERT_STATES = ["pending", "sent", "failed"] as const;
export type AlertState = (typeof ALERT_STATES)[number];

export interface Alert {
  id: string;
  project: string;
  /** Empty for a test. */
  job: string;
  job_name: string;
  rule: string;
  kind: string;
  message: string;
  target: string;
  state: AlertState;
  tries: number;
  error: string;
  at: string;
  due_at: string | null;
}

export interface AlertPage {
  items: Alert[];
  next_cursor: string | null;
}

export interface AlertChannel {
  webhook: string | null;
  secret: string | null;
  slack: string | null;
  mail: string | null;
}

export interface AlertRule {
  name: string;
  project: string;
  when: Record<string, unknown>;
  channels: AlertChannel[];
  set_by: string;
  set_at: string;
}

/** What the view is asked for, as its address says it. */
export interface AlertsAsked {
  job?: string;
  project?: string;
  state?: AlertState;
}

export function alertsAsked(given: Record<string, unknown>): AlertsAsked {
  const asked: AlertsAsked = {};
  if (typeof given.job === "string" && given.job) asked.job = given.job;
  if (typeof given.project === "string" && given.project) asked.project = given.project;
  const state = ALERT_STATES.find((one) => one === given.state);
  if (state) asked.state = state;
  return asked;
}

export function alerts(asked: AlertsAsked, cursor: string | null, signal?: AbortSignal): Promise<AlertPage> {
  return read<AlertPage>(`/alerts${queryText({ ...asked, limit: 50, cursor })}`, { signal });
}

function rulesPath(project: string): string {
  return `/projects/${encodeURIComponent(project)}/alerts`;
}

export async function alertRules(project: string, signal?: AbortSignal): Promise<AlertRule[]> {
  return (await read<{ items: AlertRule[] }>(rulesPath(project), { signal })).items;
}

/** Sets the rule, or replaces the one of that name. Resolves to what would keep its alerts from arriving now, in sentences. */
export async function setRule(project: string, name: string, rule: Record<string, unknown>): Promise<string[]> {
  const answer = await send(`${rulesPath(project)}/${encodeURIComponent(name)}`, { method: "PUT", body: rule });
  return ((await answer.json()) as { warnings: string[] }).warnings;
}

export async function testRule({ project, name }: AlertRule): Promise<void> {
  await send(`${rulesPath(project)}/${encodeURIComponent(name)}/test`, { method: "POST" });
}

export async function dropRule({ project, name }: AlertRule): Promise<void> {
  await send(`${rulesPath(project)}/${encodeURIComponent(name)}`, { method: "DELETE" });
}

const BESIDE: Record<string, string[]> = { metric: ["above", "below", "steps"], goodput_below: ["over_s"] };

/** `metric: loss, above: 10, steps: 3`. */
export function whenText(when: Record<string, unknown>): string {
  const given = (key: string): boolean => when[key] !== null && when[key] !== undefined;
  const kind = ["state", "metric", "worker_lost", "waits_longer_than_s", "goodput_below"].find(given);
  if (kind === undefined) return "";
  return [kind, ...(BESIDE[kind] ?? [])]
    .filter(given)
    .map((key) => `${key}: ${String(when[key])}`)
    .join(", ");
}

export function channelText(channel: AlertChannel): string {
  if (channel.slack !== null) return `slack ${channel.slack}`;
  return channel.mail !== null ? `mail ${channel.mail}` : `webhook ${channel.webhook ?? ""}`;
}

/** What a job's page says of its newest alerts; null where there are none. */
export function alertsTold(page: AlertPage): { title: string; failed: boolean } | null {
  if (page.items.length === 0) return null;
  const failed = page.items.filter((one) => one.state === "failed").length;
  const pending = page.items.filter((one) => one.state === "pending").length;
  const more = page.next_cursor === null ? "" : "More than ";
  const parts = [`${more}${plural(page.items.length, "alert")}`];
  if (pending > 0) parts.push(`${pending} still to be sent`);
  if (failed > 0) parts.push(`${failed} could not be sent`);
  return { title: parts.join(", "), failed: failed > 0 };
}
