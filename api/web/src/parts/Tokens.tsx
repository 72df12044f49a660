/** One's tokens: made, shown once, revoked. An admin's list holds everybody's. */
import { useQuery } from "@tanstack/react-query";
import { useState, type SyntheticEvent } from "react";
import {
  daysAtFirst,
  makeToken,
  mostDays,
  revokeToken,
  rolesText,
  scopeOf,
  tokens as readTokens,
  type Token,
} from "../access";
import { ApiError } from "../api";
import { every } from "../cache";
import { age, full } from "../format";
import { Card } from "./Card";
import { Copy } from "./Copy";
import { ErrorNotice, Notice, Skeleton } from "./Notice";

const EVERY_MS = 10_000;
const ROLES = ["viewer", "submitter", "operator", "admin"];

/** Does it, reads the list again, and says what was wrong. */
type Attempt = (what: () => Promise<unknown>) => Promise<ApiError | null>;

/** `longestS`: how long a token may last that is made here; null for as long as one likes. */
export function Tokens({ longestS }: { longestS: number | null }) {
  const { data, failureReason: error, dataUpdatedAt: at, refetch } = useQuery({
    queryKey: ["tokens"],
    queryFn: ({ signal }) => readTokens(signal),
    refetchInterval: every(EVERY_MS),
  });
  const [failed, setFailed] = useState<ApiError | null>(null);
  const attempt: Attempt = async (what) => {
    try {
      await what();
      return null;
    } catch (cause) {
      return cause instanceof ApiError ? cause : new ApiError({ status: 0, detail: String(cause) });
    } finally {
      void refetch();
    }
  };
  return (
    <Card title="Tokens">
      <NewTokenForm attempt={attempt} most={mostDays(longestS)} />
      <Refusal error={failed} />
      {error && <ErrorNotice error={error} stale={data !== undefined} />}
      {data === undefined ? (
        !error && <Skeleton lines={3} />
      ) : (
        <TokenTable
          tokens={data.filter((token) => token.revoked_at === null)}
          now={at}
          revoke={(token) => void attempt(() => revokeToken(token.id)).then(setFailed)}
        />
      )}
    </Card>
  );
}

function Refusal({ error }: { error: ApiError | null }) {
  return (
    error && (
      <Notice tone="bad" title={error.message}>
        {error.hint && <p>{error.hint}</p>}
      </Notice>
    )
  );
}

/** `most`: days, at most; null where no end is needed. */
export function NewTokenForm({ attempt, most }: { attempt: Attempt; most: number | null }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("");
  const [project, setProject] = useState("");
  const [days, setDays] = useState(String(daysAtFirst(most)));
  const [made, setMade] = useState<string | null>(null);
  const [refused, setRefused] = useState<ApiError | null>(null);
  const make = (event: SyntheticEvent): void => {
    event.preventDefault();
    setMade(null);
    void attempt(async () => {
      const token = await makeToken(name, scopeOf(role, project), days === "" ? null : Number(days));
      setMade(token.token);
      setName("");
    }).then(setRefused);
  };
  return (
    <form className="token-form" onSubmit={make}>
      <label>
        Name
        <input value={name} onChange={(e) => setName(e.target.value)} maxLength={100} required />
      </label>
      <label>
        Rights
        <select value={role} onChange={(e) => setRole(e.target.value)}>
          <option value="">all my rights</option>
          {ROLES.map((one) => (
            <option key={one} value={one}>
              at most {one}
            </option>
          ))}
        </select>
      </label>
      <label>
        In project
        <input
          value={project}
          onChange={(e) => setProject(e.target.value)}
          placeholder="all"
          disabled={role === ""}
        />
      </label>
      <label>
        Expires after (days)
        <input
          type="number"
          min="0.01"
          max={most ?? 3650}
          step="any"
          required={most !== null}
          value={days}
          placeholder={most === null ? "never" : ""}
          onChange={(e) => setDays(e.target.value)}
        />
      </label>
      <button type="submit" className="primary">
        Create token
      </button>
      {made !== null && (
        <Notice tone="info" title="Copy the token now: it is shown only once" testId="new-token">
          <Copy value={made} label="the token" />
        </Notice>
      )}
      <Refusal error={refused} />
    </form>
  );
}

interface TableProps {
  tokens: readonly Token[];
  now: number;
  revoke: (token: Token) => void;
}

function TokenTable({ tokens, now, revoke }: TableProps) {
  return (
    <div className="scroll">
      <table data-testid="tokens" className="stacked">
        <thead>
          <tr>
            <th>Name</th>
            <th>User</th>
            <th>Prefix</th>
            <th>Rights</th>
            <th>Last used</th>
            <th>Expires</th>
            <th aria-label="Actions" />
          </tr>
        </thead>
        <tbody>
          {tokens.map((token) => (
            <tr key={token.id} data-token={token.id}>
              <td data-said="Name">
                <b>{token.name}</b>
              </td>
              <td data-said="User">{token.user}</td>
              <td className="mono" data-said="Prefix">{token.prefix}</td>
              <td data-said="Rights">{isWhole(token) ? "all rights of the user" : rolesText(token.scope)}</td>
              <td data-said="Last used">{token.last_used_at ? age(token.last_used_at, now) : "never"}</td>
              <td data-said="Expires">{token.expires_at ? full(token.expires_at) : "never"}</td>
              <td>
                <button type="button" className="quiet" onClick={() => revoke(token)}>
                  Revoke
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function isWhole(token: Token): boolean {
  return token.scope["*"] === "admin";
}
