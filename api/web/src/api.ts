/** Every request the page makes: same origin, cookie credential, a deadline, problems as errors. */
import type { Admission, Finding, Job, JobPage, MetricPoint, Problem, Worker } from "./wire";

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

let onUnauthorized: () => void = () => undefined;

/** Whom to tell when a credential is missing or no longer valid. */
export function whenUnauthorized(tell: () => void): void {
  onUnauthorized = tell;
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

export interface FeedPage<T> {
  items: T[];
  next: number | string | null;
}

export interface JobQuery {
  state?: string;
  project?: string;
  name?: string;
  cursor?: string | null;
  limit?: number;
}

export function jobs(query: JobQuery, signal?: AbortSignal): Promise<JobPage> {
  return read<JobPage>(`/jobs${search({ ...query })}`, { signal });
}

/** All items of a list, page after page. */
export async function all<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  do {
    const query = search({ limit: 200, cursor });
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

export async function metricNames(id: string, signal?: AbortSignal): Promise<string[]> {
  return (await read<{ names: string[] }>(`${jobPath(id)}/metrics`, { signal })).names;
}

export async function metric(
  id: string,
  name: string,
  maxPoints: number,
  signal?: AbortSignal,
): Promise<MetricPoint[]> {
  const query = search({ name, max_points: maxPoints });
  return (await read<{ points: MetricPoint[] }>(`${jobPath(id)}/metrics${query}`, { signal })).points;
}

/** One page of a numbered feed (`events` or `logs`) after `after`; `next` is null at its end. */
export function feedPage<T>(
  path: string,
  after: number,
  limit: number,
  signal?: AbortSignal,
): Promise<FeedPage<T>> {
  return read<FeedPage<T>>(`${path}${search({ after, limit })}`, { signal });
}

/** Open a feed as server-sent events; the caller reads the body. */
export async function feedStream(path: string, after: number, signal: AbortSignal): Promise<Response> {
  const headers = { Accept: "text/event-stream", "Last-Event-ID": String(after) };
  const response = await fetch(`${BASE}${path}${search({ after })}`, {
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

export function resize(id: string, min: number, max: number): Promise<Job> {
  return read<Job>(jobPath(id), {
    method: "PATCH",
    body: { workers: { min, max } },
    headers: { "Content-Type": "application/merge-patch+json" },
  });
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
  if (response.status === 401) onUnauthorized();
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

export function search(query: Record<string, string | number | null | undefined>): string {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") parts.set(key, String(value));
  }
  const text = parts.toString();
  return text ? `?${text}` : "";
}
