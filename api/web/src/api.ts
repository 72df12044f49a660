/** Every request the page makes: same origin, cookie credential, a deadline, problems as errors. */
import { queryText } from "./address";
import type { LabelChange } from "./labels";
import type {
  Admission,
  Artifact,
  Comparison,
  Facets,
  Finding,
  Job,
  JobGroups,
  JobPage,
  KeptCheckpoint,
  LogLine,
  Problem,
  Sweep,
  SystemSeries,
  Trial,
  Worker,
} from "./wire";

const BASE = "/api/v1";
const DEADLINE_MS = 15_000;

/** The API answered with a problem (RFC 9457), or did not answer at all (`status` 0). */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly hint: string;
  readonly findings: Finding[];

  constructor(problem: Partial<Problem> & { status: number }) {
    super(problem.detail ?? problem.title ?? `The API answered with status ${problem.status}.`);
    this.status = problem.status;
    this.code = problem.code ?? "";
    this.hint = problem.hint ?? "";
    this.findings = problem.errors ?? [];
  }
}

interface Call {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

export async function logout(): Promise<void> {
  await send("/login", { method: "DELETE" });
}

/** Leave for the log-in form, which the API serves itself: nothing of this page is public. */
export function toLogin(): void {
  const { pathname, search } = window.location;
  window.location.assign(`/login?next=${encodeURIComponent(pathname + search)}`);
}

export interface FeedPage<T> {
  items: T[];
  next: number | string | null;
}

/** What a list of jobs is asked for, in the API's words. */
export interface JobQuery {
  search?: string | undefined;
  state?: string | undefined;
  project?: string | undefined;
  owner?: string | undefined;
  label?: string[] | undefined;
  param?: string[] | undefined;
  sort?: string | undefined;
  /** Names, separated by commas. */
  metrics?: string | undefined;
  cursor?: string | null;
  limit?: number;
}

export function jobs(query: JobQuery, signal?: AbortSignal): Promise<JobPage> {
  return read<JobPage>(`/jobs${queryText({ ...query })}`, { signal });
}

export function jobGroups(query: Omit<JobQuery, "sort" | "cursor" | "limit"> & { by: string }, signal?: AbortSignal): Promise<JobGroups> {
  return read<JobGroups>(`/jobs/groups${queryText({ ...query })}`, { signal });
}

export function facets(signal?: AbortSignal): Promise<Facets> {
  return read<Facets>("/jobs/facets", { signal });
}

/** What curves are asked for, in the API's words; lists are separated by commas. */
export interface CurveQuery {
  jobs: string;
  names: string;
  /** Each curve is thinned to about so many. */
  max_points: number;
  axis?: string;
  from?: number | undefined;
  to?: number | undefined;
}

/** The same metrics of several jobs. */
export function curves(query: CurveQuery, signal?: AbortSignal): Promise<Comparison> {
  return read<Comparison>(`/curves${queryText({ ...query })}`, { signal });
}

/** All items of a list, page after page. */
export async function all<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  do {
    const query = queryText({ limit: 200, cursor });
    const page: { items: T[]; next_cursor?: string | null } = await read(`${path}${query}`, { signal });
    found.push(...page.items);
    cursor = page.next_cursor ?? null;
  } while (cursor !== null);
  return found;
}

export function job(id: string, signal?: AbortSignal): Promise<Job> {
  return read<Job>(jobPath(id), { signal });
}

export async function workers(id: string, signal?: AbortSignal): Promise<Worker[]> {
  return items(await read<Worker[] | { items: Worker[] }>(`${jobPath(id)}/workers`, { signal }));
}

/** What a job's workers and nodes used between two Unix times. */
export async function system(id: string, between: { from?: number; to?: number }, signal?: AbortSignal): Promise<SystemSeries[]> {
  return (await read<{ series: SystemSeries[] }>(`${jobPath(id)}/system${queryText(between)}`, { signal })).series;
}

export function artifacts(id: string, signal?: AbortSignal): Promise<Artifact[]> {
  return all<Artifact>(`${jobPath(id)}/artifacts`, signal);
}

/** Where a link leads that downloads an artifact. */
export function artifactUrl(id: string, name: string): string {
  return `${BASE}${jobPath(id)}/artifacts/${encodeURIComponent(name)}`;
}

/** Those that a job could begin with, newest first. */
export async function checkpoints(id: string, signal?: AbortSignal): Promise<KeptCheckpoint[]> {
  return (await read<{ items: KeptCheckpoint[] }>(`${jobPath(id)}/checkpoints`, { signal })).items;
}

/** Where a link leads that downloads the weights of a checkpoint. */
export function weightsUrl(id: string, name: string): string {
  return `${BASE}${jobPath(id)}/checkpoints/${encodeURIComponent(name)}/weights`;
}

/** Where a report on a job lies; the query says how its curves are drawn. */
export function reportUrl(id: string, query: string): string {
  return `${BASE}${jobPath(id)}/report${query}`;
}

/** Where a job's metrics lie as an event file of TensorBoard. */
export function tensorboardUrl(id: string): string {
  return `${BASE}${jobPath(id)}/tensorboard`;
}

/** Where a report on several jobs lies; the query names them. */
export function comparisonUrl(query: string): string {
  return `${BASE}/curves/report${query}`;
}

export async function metricNames(id: string, signal?: AbortSignal): Promise<string[]> {
  return (await read<{ names: string[] }>(`${jobPath(id)}/metrics`, { signal })).names;
}

/** One page of a numbered feed (`events` or `logs`) after `after`; `next` is null at its end. */
export function feedPage<T>(
  path: string,
  after: number,
  limit: number,
  signal?: AbortSignal,
): Promise<FeedPage<T>> {
  return read<FeedPage<T>>(`${path}${queryText({ after, limit })}`, { signal });
}

/** What log lines are asked for, in the API's words; what is empty selects none. */
export interface LogQuery {
  after: number;
  limit: number;
  worker?: string;
  level?: string;
  text?: string;
}

export function logLines(id: string, query: LogQuery): Promise<{ items: LogLine[]; next: number | null }> {
  return read(`${jobPath(id)}/logs${queryText({ ...query })}`);
}

/** Open a feed as server-sent events; the caller reads the body. */
export async function feedStream(path: string, after: number, signal: AbortSignal): Promise<Response> {
  const headers = { Accept: "text/event-stream", "Last-Event-ID": String(after) };
  const response = await fetch(`${BASE}${path}${queryText({ after })}`, {
    headers,
    signal,
    credentials: "same-origin",
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Submit a job file; the same `key` never starts it twice. */
export function submit(spec: unknown, key: string): Promise<Job> {
  return read<Job>("/jobs", { method: "POST", body: spec, headers: { "Idempotency-Key": key } });
}

/** A key for one submission. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What admission would say now; nothing is stored. */
export function preview(spec: unknown): Promise<Admission> {
  return read<Admission>("/jobs?dry_run=true", { method: "POST", body: spec });
}

export async function pause(id: string): Promise<void> {
  await send(`${jobPath(id)}/pause`, { method: "POST" });
}

export async function resume(id: string): Promise<void> {
  await send(`${jobPath(id)}/resume`, { method: "POST" });
}

export async function cancel(id: string): Promise<void> {
  await send(`${jobPath(id)}/cancel`, { method: "POST", body: {} });
}

export async function remove(id: string): Promise<void> {
  await send(jobPath(id), { method: "DELETE" });
}

export function resize(id: string, min: number, max: number): Promise<Job> {
  return merge(id, { workers: { min, max } });
}

export function prioritize(id: string, priority: number): Promise<Job> {
  return merge(id, { priority });
}

/** Injects a fault; `worker` is a member's id, null for the supervisor. */
export function injectFault(id: string, fault: string, worker: string | null, forS: number): Promise<{ effect: string }> {
  return read(`${jobPath(id)}/faults`, { method: "POST", body: { fault, worker, for_s: forS } });
}

/** Sets labels; null removes one. */
export async function relabel(id: string, labels: LabelChange): Promise<void> {
  await merge(id, { labels });
}

function merge(id: string, body: object): Promise<Job> {
  const headers = { "Content-Type": "application/merge-patch+json" };
  return read<Job>(jobPath(id), { method: "PATCH", body, headers });
}

/** The newest 200 sweeps: the list is read every few seconds. */
export async function sweeps(signal?: AbortSignal): Promise<Sweep[]> {
  return (await read<{ items: Sweep[] }>("/sweeps?limit=200", { signal })).items;
}

export function sweep(id: string, signal?: AbortSignal): Promise<Sweep> {
  return read<Sweep>(sweepPath(id), { signal });
}

export async function trials(id: string, signal?: AbortSignal): Promise<Trial[]> {
  return (await read<{ items: Trial[] }>(`${sweepPath(id)}/trials`, { signal })).items;
}

/** Pause, resume or cancel a sweep. */
export async function changeSweep(id: string, how: "pause" | "resume" | "cancel"): Promise<void> {
  await send(`${sweepPath(id)}/${how}`, { method: "POST" });
}

function sweepPath(id: string): string {
  return `/sweeps/${encodeURIComponent(id)}`;
}

export function jobPath(id: string): string {
  return `/jobs/${encodeURIComponent(id)}`;
}

export async function read<T>(path: string, call: Call = {}): Promise<T> {
  return (await (await send(path, call)).json()) as T;
}

export async function send(path: string, call: Call): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (call.body !== undefined) headers["Content-Type"] = "application/json";
  const deadline = AbortSignal.timeout(DEADLINE_MS);
  const response = await fetch(`${BASE}${path}`, {
    method: call.method ?? "GET",
    headers: { ...headers, ...call.headers },
    body: call.body === undefined ? null : JSON.stringify(call.body),
    credentials: "same-origin",
    signal: call.signal ? AbortSignal.any([call.signal, deadline]) : deadline,
  }).catch((cause: unknown) => {
    if (call.signal?.aborted) throw cause;
    throw unreachable();
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response: Response): Promise<ApiError> {
  if (response.status === 401) toLogin();
  const body: unknown = await response.json().catch(() => null);
  const problem = typeof body === "object" && body !== null ? (body as Partial<Problem>) : {};
  return new ApiError({ ...problem, status: response.status });
}

function unreachable(): ApiError {
  return new ApiError({
    status: 0,
    code: "api_unreachable",
    detail: "The control plane does not answer.",
    hint: "Jobs keep running without it. This page updates by itself once it is back.",
  });
}

function items<T>(answer: T[] | { items: T[] }): T[] {
  return Array.isArray(answer) ? answer : answer.items;
}
