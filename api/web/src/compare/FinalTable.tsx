/** The end of each run: last values, how far from the baseline's, and what the run cost. */
import { Link } from "@tanstack/react-router";
import { count, duration } from "../format";
import { Card } from "../parts/Card";
import { StateBadge } from "../parts/State";
import { Swatch } from "../plot/Swatch";
import { useChange } from "./change";
import { deltaWords, valueWords, type Finals } from "./finals";
import type { Files, Run } from "./runs";

interface Props {
  runs: readonly Run[];
  names: readonly string[];
  finals: Finals;
  files: Files;
  baseline: string | null;
}

export function FinalTable({ runs, names, finals, files, baseline }: Props) {
  const change = useChange();
  const base = baseline === null ? undefined : finals.get(baseline);
  return (
    <Card title="Last values" aside={baseline && <ClearBaseline />}>
      <div className="scroll compare-scroll" tabIndex={0} role="region" aria-label="Last values of each run">
        <table data-testid="finals" className="stacked">
          <thead>
            <tr>
              <th scope="col">Run</th>
              <th scope="col">Baseline</th>
              <th scope="col">State</th>
              {names.map((name) => (
                <th key={name} scope="col" className="num">
                  {name}
                </th>
              ))}
              {["Steps", "Recoveries", "Time"].map((head) => (
                <th key={head} scope="col" className="num">
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {runs.map((run) => (
              <tr key={run.id} data-job={run.id}>
                <th scope="row">
                  <Swatch look={run.look} />{" "}
                  <Link to="/jobs/$id" params={{ id: run.id }} className="job-link">
                    {run.label}
                  </Link>
                </th>
                <td data-said="Baseline">
                  <input
                    type="radio"
                    name="baseline"
                    aria-label={`Compare with ${run.label}`}
                    checked={run.id === baseline}
                    onChange={() => change({ baseline: run.id })}
                  />
                </td>
                <td data-said="State">
                  <StateBadge state={run.state} />
                </td>
                {names.map((name) => {
                  const value = finals.get(run.id)?.[name];
                  const delta = run.id === baseline ? "" : deltaWords(value, base?.[name]);
                  return (
                    <td key={name} className="num" data-said={name}>
                      {valueWords(value)}
                      {delta && <span className="muted delta">{delta}</span>}
                    </td>
                  );
                })}
                <Costs job={files.get(run.id)} />
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function ClearBaseline() {
  const change = useChange();
  return (
    <button type="button" className="small" onClick={() => change({ baseline: null })}>
      No baseline
    </button>
  );
}

function Costs({ job }: { job: ReturnType<Files["get"]> }) {
  return (
    <>
      <td className="num" data-said="Steps">{job ? count(job.progress.step) : "–"}</td>
      <td className="num" data-said="Recoveries">{job ? count(job.totals.recoveries) : "–"}</td>
      <td className="num" data-said="Time">{job && job.totals.wall_s > 0 ? duration(job.totals.wall_s) : "–"}</td>
    </>
  );
}
