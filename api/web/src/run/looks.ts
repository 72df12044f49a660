/** Which metrics the page of a job shows by itself, and how each is drawn. */
import type { Look } from "../plot/lines";
import type { Curve } from "../wire";

export const USUAL = ["loss", "samples_per_s", "world_size"] as const;

export interface MetricLook {
  label: string;
  unit: string;
  /** The unit of exactly 1, where that is another word. */
  unitOfOne?: string;
  height: number;
  look: Look;
  holds?: boolean;
  zero?: boolean;
  whole?: boolean;
}

const solid = (colour: number): Look => ({ colour, dash: 0 });

const LOOKS: Record<string, MetricLook> = {
  loss: { label: "Loss", unit: "", height: 220, look: solid(0) },
  samples_per_s: { label: "Throughput", unit: "samples/s", height: 140, look: solid(2), zero: true },
  world_size: {
    label: "World size",
    unit: "workers",
    unitOfOne: "worker",
    height: 110,
    look: solid(3),
    holds: true,
    zero: true,
    whole: true,
  },
  loading_fraction: { label: "Loading", unit: "of the step", height: 140, look: solid(2), zero: true },
  exchange_fraction: { label: "Communication", unit: "of the step", height: 140, look: solid(0), zero: true },
  idle_fraction: { label: "Waiting for others", unit: "of the step", height: 140, look: solid(5), zero: true },
  comm_exposed_fraction: {
    label: "Exposed communication",
    unit: "of the step",
    height: 140,
    look: solid(1),
    zero: true,
  },
};

export function metricLook(name: string): MetricLook {
  return LOOKS[name] ?? { label: name.replaceAll("_", " "), unit: "", height: 160, look: solid(1) };
}

/** The unit behind a value: "1 worker", "2 workers". */
export function unitOf({ unit, unitOfOne }: MetricLook, value: number | undefined): string {
  return value === 1 ? (unitOfOne ?? unit) : unit;
}

/** Steps per second over the newest `window` points; undefined before there are enough. */
export function stepRate(curve: Pick<Curve, "steps" | "times"> | undefined, window = 40): number | undefined {
  const [steps, times] = [curve?.steps.slice(-window) ?? [], curve?.times.slice(-window) ?? []];
  const seconds = (times.at(-1) ?? 0) - (times[0] ?? 0);
  const made = (steps.at(-1) ?? 0) - (steps[0] ?? 0);
  return seconds > 0 && made > 0 ? made / seconds : undefined;
}
