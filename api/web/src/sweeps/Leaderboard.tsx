/** The trials of a sweep in a table that is sorted by its heads, and its rungs. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { count, gist, number, sentence } from "../format";
import { Card } from "../parts/Card";
import { StateBadge } from "../parts/State";
import type { Sweep, Trial } from "../wire";
import { keysOf, ordered, rungsOf, words } from "./leaderboard";
import type { Order } from "./order";

interface Props {
  sweep: Sweep;
  trials: readonly Trial[];
  order: Order;
  aside: ReactNode;
}

export function Leaderboard({ sweep, trials, order, aside }: Props) {
  const keys = keysOf(trials);
  return (
    <Card title="Leaderboard" aside={aside}>
      <div className="scroll" tabIndex={0} role="region" aria-label="Leaderboard">
        <table data-testid="leaderboard" className="stacked sorted-by-heads">
          <thead>
            <tr>
              <Head column="trial" label="Trial" sweep={sweep} order={order} />
              <Head column="state" label="State" sweep={sweep} order={order} />
              <Head column="score" label={sweep.spec.metric.name} sweep={sweep} order={order} numeric />
              <Head column="step" label="Step" sweep={sweep} order={order} numeric />
              {keys.map((key) => (
                <Head key={key} column={key} label={key} sweep={sweep} order={order} numeric />
              ))}
            </tr>
          </thead>
          <tbody>
            {ordered(trials, sweep, order.sort).map((trial) => (
              <tr key={trial.number} data-trial={trial.number}>
                <td data-said="Trial">
                  {trial.job === null ? (
                    trial.number
                  ) : (
                    <Link to="/jobs/$id" params={{ id: trial.job }} className="job-link">
                      {trial.number}
                    </Link>
                  )}
                  {trial.number === sweep.best && <span className="muted"> best</span>}
                </td>
                <td data-said="State" title={trial.reason?.message}>
                  <StateBadge state={trial.job_state ?? trial.state} />
                  {trial.state === "failed" && trial.reason && (
                    <p className="why bad">{sentence(gist(trial.reason.message))}</p>
                  )}
                </td>
                <td className="num" data-said={sweep.spec.metric.name}>{number(trial.score)}</td>
                <td className="num" data-said="Step">{count(trial.step)}</td>
                {keys.map((key) => (
                  <td key={key} className="num" data-said={key}>
                    {shown(trial.point?.[key])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

interface HeadProps {
  column: string;
  label: string;
  sweep: Sweep;
  order: Order;
  numeric?: boolean;
}

function Head({ column, label, sweep, order, numeric = false }: HeadProps) {
  const [up, down] = [order.sort === column, order.sort === `-${column}`];
  return (
    <th scope="col" className={numeric ? "num" : ""} aria-sort={up ? "ascending" : down ? "descending" : "none"}>
      <Link to="/sweeps/$id" params={{ id: sweep.id }} search={{ sort: up ? `-${column}` : column }} replace resetScroll={false}>
        {label}
        <span aria-hidden="true">{up ? " ↑" : down ? " ↓" : ""}</span>
      </Link>
    </th>
  );
}

export function Rungs({ sweep, trials }: { sweep: Sweep; trials: readonly Trial[] }) {
  return (
    <Card title="Rungs">
      <div className="scroll" tabIndex={0} role="region" aria-label="Rungs">
        <table data-testid="rungs" className="stacked">
          <thead>
            <tr>
              <th scope="col">Step</th>
              <th scope="col" className="num">
                Reached
              </th>
              <th scope="col" className="num">
                Went on
              </th>
              <th scope="col" className="num">
                Best {sweep.spec.metric.name}
              </th>
            </tr>
          </thead>
          <tbody>
            {rungsOf(sweep, trials).map((rung) => (
              <tr key={rung.step ?? "end"}>
                <td data-said="Step">{rung.step === null ? "end" : count(rung.step)}</td>
                <td className="num" data-said="Reached">
                  {rung.reached}
                  {rung.before > 0 && <span className="muted">, {rung.before} ended before</span>}
                </td>
                <td className="num" data-said="Went on">{rung.step === null ? "–" : rung.went}</td>
                <td className="num" data-said={`Best ${sweep.spec.metric.name}`}>{number(rung.best)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function shown(value: unknown): string {
  return value === undefined ? "–" : typeof value === "number" ? number(value) : words(value);
}
