/** Files that the page makes: CSV of values, text. */

export type Cell = string | number;

/** Comma-separated values by RFC 4180. Text that a spreadsheet would take for a formula is marked as text. */
export function csv(rows: readonly (readonly Cell[])[]): string {
  return rows.map((row) => row.map(field).join(",") + "\r\n").join("");
}

export function saveCsv(name: string, rows: readonly (readonly Cell[])[]): void {
  save(`${fileName(name)}.csv`, new Blob([csv(rows)], { type: "text/csv" }));
}

export function saveText(name: string, text: string): void {
  save(name, new Blob([text], { type: "text/plain" }));
}

/** A metric's name may hold what a file's may not. */
export function fileName(name: string): string {
  return name.replace(/[^\w.-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "") || "chart";
}

function field(cell: Cell): string {
  if (typeof cell === "number") return Number.isFinite(cell) ? String(cell) : "";
  const safe = /^[=+\-@\t\r\n]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function save(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // Not at once: the browser reads it after the click.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
