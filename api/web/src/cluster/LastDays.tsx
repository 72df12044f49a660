/** What jobs held of the cluster over the last days: a line, sums by day, and all of it as a file. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { every } from "../cache";
import { percent } from "../format";
import { Card } from "../parts/Card";
import { ErrorNotice, Skeleton } from "../parts/Notice";
import { KINDS } from "../plot/curves";
import type { Range } from "../plot/lines";
import { LinePlot } from "../plot/LinePlot";
import { days, linesOf, round, rowsOf } from "./usage";
import { history as readHistory, type History } from "./wire";

const EVERY_MS = 60_000;
const SPANS = [
  [24, "One day"],
  [168, "Seven days"],
] as const;
const HEIGHT = 150;

export function LastDays() {
  const [hours, setHours] = useState<number>(24);
  const { data, failureReason } = useQuery({
    queryKey: ["cluster", "history", hours],
    queryFn: ({ signal }) => readHistory(hours, signal),
    placeholderData: keepPreviousData,
    refetchInterval: every(EVERY_MS),
  });
  const spans = SPANS.map(([value, words]) => (
    <button key={value} type="button" className="chip" aria-pressed={hours === value} onClick={() => setHours(value)}>
      {words}
    </button>
  ));
  return (
    <Card title="Last days" aside={<span className="chips">{spans}</span>}>
      {failureReason && <ErrorNotice error={failureReason} stale={data !== undefined} />}
      {data === undefined && !failureReason && <Skeleton lines={3} />}
      {data && (data.at.length < 2 ? <p className="pad muted">Nothing is known yet: a sample is taken each minute.</p> : <Shown history={data} />)}
    </Card>
  );
}

function Shown({ history }: { history: History }) {
  const gpus = history.gpus.some((one) => one > 0);
  const [zoom, setZoom] = useState<Range | null>(null);
  const lines = useMemo(() => linesOf(history), [history]);
  const share = (held: readonly number[], whole: readonly number[]): string => percent(sum(held) / Math.max(1e-9, sum(whole)));
  const held = [`${share(history.held_cpus, history.cpus)} of the CPUs`, ...(gpus ? [`${share(history.held_gpus, history.gpus)} of the GPUs`] : [])];
  return (
    <div className="pad">
      <p>Jobs held {held.join(" and ")}.</p>
      <LinePlot
        name="Held by jobs"
        of="Cluster"
        things="%"
        lines={lines}
        kind={KINDS.wall}
        zero
        height={HEIGHT}
        zoom={zoom}
        highlight={null}
        onZoom={setZoom}
        rows={() => rowsOf(history)}
      />
      <div className="scroll" tabIndex={0} role="region" aria-label="By day">
        <table data-testid="days" className="stacked">
          <thead>
            <tr>
              <th>Day (UTC)</th>
              <th className="num">CPU hours held</th>
              <th className="num">CPU hours idle</th>
              {gpus && <th className="num">GPU hours held</th>}
              {gpus && <th className="num">GPU hours idle</th>}
            </tr>
          </thead>
          <tbody>
            {days(history).map((day) => (
              <tr key={day.day}>
                <td data-said="Day (UTC)">{day.day}</td>
                <td className="num" data-said="CPU hours held">{round(day.held_cpu_h)}</td>
                <td className="num" data-said="CPU hours idle">{round(day.idle_cpu_h)}</td>
                {gpus && <td className="num" data-said="GPU hours held">{round(day.held_gpu_h)}</td>}
                {gpus && <td className="num" data-said="GPU hours idle">{round(day.idle_gpu_h)}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function sum(values: readonly number[]): number {
  return values.reduce((all, one) => all + one, 0);
}
