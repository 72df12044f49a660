/** A chart as a file: CSV of its values, PNG of its picture. */
import type { Theme } from "./palette";

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

/** The canvas on the page's ground, with its title above. */
export function savePng(name: string, canvas: HTMLCanvasElement, theme: Theme): void {
  const ratio = window.devicePixelRatio;
  const head = Math.round(34 * ratio);
  const picture = document.createElement("canvas");
  picture.width = canvas.width;
  picture.height = canvas.height + head;
  const pen = picture.getContext("2d");
  if (pen === null) return;
  pen.fillStyle = theme.surface;
  pen.fillRect(0, 0, picture.width, picture.height);
  pen.fillStyle = theme.ink;
  pen.font = `600 ${14 * ratio}px system-ui, sans-serif`;
  pen.fillText(name, 12 * ratio, 23 * ratio);
  pen.drawImage(canvas, 0, head);
  picture.toBlob((blob) => blob && save(`${fileName(name)}.png`, blob), "image/png");
}

/** A metric's name may hold what a file's may not. */
export function fileName(name: string): string {
  return name.replace(/[^\w.-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "") || "chart";
}

function field(cell: Cell): string {
  if (typeof cell === "number") return Number.isFinite(cell) ? String(cell) : "";
  const safe = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function save(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // Not at once: the browser reads it after the click.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
