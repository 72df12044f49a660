/** What the API said where it refused to do something. */
import type { ApiError } from "../api";
import { Notice } from "../parts/Notice";

export function Refusal({ error }: { error: ApiError | null }) {
  return (
    error && (
      <Notice tone="bad" title={error.message}>
        {error.findings.map((one) => (
          <p key={one.pointer}>
            <code>{one.pointer}</code> {one.message}
          </p>
        ))}
        <p>{error.hint}</p>
      </Notice>
    )
  );
}
