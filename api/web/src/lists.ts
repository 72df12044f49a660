/** Lists of names in one parameter of a query: separated by commas, and in quotation marks where a name holds one. As
    `ringleader.wire.lists` has them. Pure. */

const PART = /(?:^|,)\s*(?:"((?:[^"]|"")*)"\s*(?=,|$)|([^,]*))/g;

/** The list of these names as a parameter; `listed` reads it back. */
export function listOf(names: readonly string[]): string {
  return names.map(quoted).join(",");
}

/** The names of a list, each once, in order. */
export function listed(text: string | null | undefined): string[] {
  const parts = Array.from((text ?? "").matchAll(PART), ([, within, plain]) => within?.replaceAll('""', '"') ?? (plain ?? "").trim());
  return [...new Set(parts.filter(Boolean))];
}

function quoted(name: string): string {
  return name.includes(",") || name.startsWith('"') || name !== name.trim() ? `"${name.replaceAll('"', '""')}"` : name;
}
