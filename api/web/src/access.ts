/** Requests about who may do what: oneself, tokens, the audit log. Shapes of `ringleader.wire.access`. */
import { queryText } from "./address";
import { all, read, send } from "./api";

export type Roles = Record<string, string>;

export interface Me {
  name: string;
  roles: Roles;
  token: string | null;
  longest_token_s: number | null;
}

export interface Token {
  id: string;
  user: string;
  name: string;
  prefix: string;
  scope: Roles;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

export interface NewToken extends Token {
  token: string;
}

export interface AuditEntry {
  id: number;
  at: string;
  who: string;
  method: string;
  path: string;
  project: string;
  target: string;
  outcome: string;
  source: string;
}

export interface AuditPage {
  items: AuditEntry[];
  next: number | null;
}

export function me(signal?: AbortSignal): Promise<Me> {
  return read<Me>("/me", { signal });
}

export function tokens(signal?: AbortSignal): Promise<Token[]> {
  return all<Token>("/tokens", signal);
}

/** The answer is the only one that holds the token. */
export function makeToken(name: string, scope: Roles | null, days: number | null): Promise<NewToken> {
  const body = { name, scope, expires_in_s: days === null ? null : days * 86_400 };
  return read<NewToken>("/tokens", { method: "POST", body });
}

export async function revokeToken(id: string): Promise<void> {
  await send(`/tokens/${encodeURIComponent(id)}`, { method: "DELETE" });
}

export function auditPage(before: number | null, signal?: AbortSignal): Promise<AuditPage> {
  return read<AuditPage>(`/audit${queryText({ limit: 50, before })}`, { signal });
}

/** The most days that a form may ask for: in hundredths, rounded down. Null: no end is needed. */
export function mostDays(longestS: number | null): number | null {
  return longestS === null ? null : Math.floor(longestS / 864) / 100;
}

/** What a form begins with. */
export function daysAtFirst(most: number | null): number {
  return Math.min(90, most ?? 90);
}

/** `vision: viewer, all projects: operator`. */
export function rolesText(roles: Roles): string {
  return Object.entries(roles)
    .map(([project, role]) => `${project === "*" ? "all projects" : project}: ${role}`)
    .join(", ");
}

/** What a form says as a scope: a role in a project; nothing chosen is no scope. */
export function scopeOf(role: string, project: string): Roles | null {
  return role === "" ? null : { [project.trim() || "*"]: role };
}
