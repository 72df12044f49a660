/** Which metrics a job's charts show, how each is drawn, and how fast it goes. */
import type { Series } from "./chart/layout";
import type { MetricPoint } from "./wire";

export const ALWAYS = ["loss", "samples_per_s", "world_size"] as const;

interface Look {
  label: string;
  unit: string;
  unitOfOne?: string;
  height: number;
  shape?: "line" | "stairs";
  zero?: boolean;
  whole?: boolean;
}

const LOOKS: Record<string, Look> = {
  loss: { label: "Loss", unit: "", height: 190 },
  samples_per_s: { label: "Throughput", unit: "samples/s", height: 110, zero: true },
  world_size: { label: "World size", unit: "workers", unitOfOne: "worker", height: 72, shape: "stairs", zero: true, whole: true },
  comm_exposed_fraction: { label: "Exposed communication", unit: "of the step", height: 90, zero: true },
};

export interface Options {
  log: boolean;
  smoothing: number;
}

export function seriesOf(name: string, points: readonly MetricPoint[], options: Options): Series {
  const look = LOOKS[name] ?? { label: name.replaceAll("_", " "), unit: "", height: 100 };
  const noisy = name !== "world_size";
  return {
    name,
    label: look.label,
    unit: look.unit,
    unitOfOne: look.unitOfOne ?? look.unit,
    height: look.height,
    points: inOrder(points),
    shape: look.shape ?? "line",
    zero: look.zero ?? false,
    whole: look.whole ?? false,
    log: options.log && name === "loss",
    smoothing: noisy ? options.smoothing : 0,
  };
}

/** In order of time, so that a new attempt that begins again at step 0 comes after the one before. */
export function inOrder(points: readonly MetricPoint[]): MetricPoint[] {
  return [...points].sort((a, b) => Date.parse(a.at) - Date.parse(b.at) || a.step - b.step);
}

/** Steps per second over the newest `window` points; undefined before there are enough. */
export function stepRate(points: readonly MetricPoint[], window = 40): number | undefined {
  const newest = inOrder(points).slice(-window);
  const [first, last] = [newest[0], newest.at(-1)];
  if (first === undefined || last === undefined) return undefined;
  const seconds = (Date.parse(last.at) - Date.parse(first.at)) / 1000;
  return seconds > 0 && last.step > first.step ? (last.step - first.step) / seconds : undefined;
}
