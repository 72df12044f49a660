/** Numbers, times and durations as people read them. */

const UNITS = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
] as const;

export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100_000 || size < 0.001) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

/** Whole things: steps, samples, rows. */
export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

export function percent(share: number, digits = 1): string {
  return `${(share * 100).toFixed(digits)} %`;
}

/** 26 214 400 → "26.2 MB". */
export function bytes(size: number): string {
  const unit = ([[1e9, "GB"], [1e6, "MB"], [1e3, "KB"]] as const).find(([least]) => size >= least);
  return unit === undefined ? `${size} B` : `${(size / unit[0]).toFixed(1)} ${unit[1]}`;
}

/** 0.0412 → "41 ms", 3.2 → "3.2 s", 192 → "3 min 12 s", 90 000 → "1 d 1 h". */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.0095) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return joined(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86_400) return joined(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return joined(Math.floor(whole / 86_400), "d", Math.floor((whole % 86_400) / 3600), "h");
}

/** "12 s ago", "3 h ago"; "just now" under two seconds and for clocks that differ a little. */
export function age(at: string, now: number): string {
  const seconds = (now - Date.parse(at)) / 1000;
  if (seconds < 2) return "just now";
  const [size, unit] = UNITS.find(([length]) => seconds >= length) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

/** How long a job has been running, or ran. */
export function ranFor(started: string | null, finished: string | null, now: number): string {
  if (started === null) return "–";
  const end = finished === null ? now : Date.parse(finished);
  return duration(Math.max(0, (end - Date.parse(started)) / 1000));
}

/** The time of day with milliseconds, in the reader's zone. */
export function clock(at: string): string {
  const when = new Date(at);
  if (Number.isNaN(when.getTime())) return at;
  const two = (part: number): string => String(part).padStart(2, "0");
  const ms = String(when.getMilliseconds()).padStart(3, "0");
  return `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}.${ms}`;
}

export function full(at: string): string {
  const when = new Date(at);
  return Number.isNaN(when.getTime()) ? at : when.toLocaleString(undefined, { hour12: false });
}

/** Logical shards [start, stop): "0–2", "4", or "none" for a server. */
export function shards([start, stop]: [number, number]): string {
  if (stop <= start) return "none";
  return stop - start === 1 ? String(start) : `${start}–${stop - 1}`;
}

/** Node ids are long hexadecimal words; their beginning tells them apart. */
export function node(id: string): string {
  return /^[0-9a-f]{16,}$/.test(id) ? `${id.slice(0, 10)}…` : id;
}

/** A sentence that the API wrote to follow a colon, standing alone. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A message in one line: of a traceback the last one, which says what went wrong, and where if its first one does. */
export function gist(message: string): string {
  const lines = message.trim().split("\n");
  if (!message.includes("Traceback")) return lines[0] ?? "";
  const place = /^The training function (raised .+):$/.exec(lines[0] ?? "")?.[1];
  return place ? `${lines.at(-1)} (${place})` : (lines.at(-1) ?? "");
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

function joined(big: number, bigUnit: string, small: number, smallUnit: string): string {
  return small === 0 ? `${big} ${bigUnit}` : `${big} ${bigUnit} ${small} ${smallUnit}`;
}
