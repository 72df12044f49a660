/** World sizes and recoveries of runs as strips under their curves. Pure. */
import type { Recovery } from "../history";
import { xsOf, type AxisName } from "../plot/curves";
import type { Strip } from "../plot/draw";
import { clockOf, type Files, type Run } from "./runs";
import type { Comparison } from "../wire";

/** More would cover the curves. */
export const MOST_STRIPS = 12;

export function stripsOf(
  answer: Comparison,
  runs: readonly Run[],
  axis: AxisName,
  files: Files,
  recoveries: ReadonlyMap<string, readonly Recovery[]> | undefined,
): Strip[] {
  const curves = new Map(answer.curves.filter((one) => one.name === "world_size").map((one) => [one.job, one]));
  return runs.flatMap((run) => {
    const curve = curves.get(run.id);
    const clock = clockOf(run, files);
    const xs = curve && xsOf(curve, axis, clock);
    if (!curve || !xs) return [];
    const when = (recoveries?.get(run.id) ?? []).map(({ step, at }) => ({ steps: [step], times: [Date.parse(at) / 1000] }));
    return [
      {
        id: run.id,
        xs,
        sizes: Float64Array.from(curve.values, (value) => value ?? 0),
        recoveries: when.flatMap((one) => [...(xsOf(one, axis, clock) ?? [])]),
      },
    ];
  });
}
