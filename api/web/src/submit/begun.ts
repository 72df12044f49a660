/** What the submit form begins with, as its address says. */

export interface Begun {
  /** The id of a job whose job file is cloned. */
  from?: string | undefined;
  /** The weights that the clone begins with: the `init_from` of its job file. */
  begin?: string | undefined;
}

export function begunWith({ from, begin }: Record<string, unknown>): Begun {
  return { from: text(from), begin: text(begin) };
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}
