/** What runs differ in, as axes: keys of their job files and last values of metrics. Pure. */
import { bounds, type Dimension } from "../plot/paint";
import type { Difference } from "./differences";
import type { Finals } from "./finals";

const WIDE = 100;

/** The axes, of which keys whose values are above 0 are logarithmic if they are among `logKeys` or lie far apart. */
export function dimensionsOf(
  ids: readonly string[],
  different: readonly Difference[],
  names: readonly string[],
  finals: Finals,
  logKeys: readonly string[] = [],
): Dimension[] {
  const keys = different
    .filter(({ path }) => path !== "alerts")
    .map(({ path, values }) => scaled(dimension(path, values.map(parsed)), logKeys))
    .sort((a, b) => weight(a) - weight(b));
  const metrics = names.map((name) => dimension(name, ids.map((id) => finals.get(id)?.[name])));
  // An axis on which all lie at one place says nothing.
  return [...keys, ...metrics].filter(({ values }) => new Set(values.filter((value) => value !== null)).size > 1);
}

/** How many axes stand beside one another in a width, so that their names and marks can be read. */
export function mostAxes(width: number): number {
  return Math.max(3, Math.min(8, Math.floor(width / 84)));
}

/** Of many axes the last ones are drawn, beside the metrics: numbers after words, and what a run is given itself after all else. */
function weight({ label, words }: Dimension): number {
  return (label.startsWith("params.") ? 2 : 0) + (words === null ? 1 : 0);
}

/** A rate from 0.001 to 1 that is drawn as it is lies at the foot of its axis. */
function scaled(one: Dimension, logKeys: readonly string[]): Dimension {
  const [low, high] = bounds(one);
  return { ...one, log: one.words === null && low > 0 && (logKeys.includes(one.label) || high / low >= WIDE) };
}

function dimension(label: string, values: readonly unknown[]): Dimension {
  const numeric = values.every((value) => value === undefined || typeof value === "number");
  if (numeric) {
    return { label, log: false, words: null, values: values.map((value) => (typeof value === "number" && Number.isFinite(value) ? value : null)) };
  }
  const text = values.map((value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value)));
  const words = [...new Set(text)];
  return { label, log: false, words, values: text.map((one) => words.indexOf(one)) };
}

function parsed(json: string | undefined): unknown {
  return json === undefined ? undefined : (JSON.parse(json) as unknown);
}
