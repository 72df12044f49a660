/** The query of an address: plain keys and values, as the API writes its own; a key given twice is a list. */

export type Query = Record<string, string | string[]>;

export function parseQuery(text: string): Query {
  const query: Query = {};
  const parts = new URLSearchParams(text);
  for (const key of new Set(parts.keys())) {
    const values = parts.getAll(key);
    query[key] = values.length === 1 ? (values[0] ?? "") : values;
  }
  return query;
}

/** `?a=1&b=2&b=3`, or nothing. What is undefined, null, empty or an empty list is left out. */
export function queryText(query: Record<string, unknown>): string {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? (value as unknown[]) : [value]) {
      if (typeof one === "string" ? one !== "" : typeof one === "number") parts.append(key, String(one));
    }
  }
  // Legal in a query as they are, and what comes before the first = is a key of ours: an address stays readable.
  const text = parts.toString().replace(/%(2C|2F|3A|3D)/g, decodeURIComponent);
  return text ? `?${text}` : "";
}
