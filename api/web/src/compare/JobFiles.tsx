/** The job files side by side: only what differs. */
import { Card } from "../parts/Card";
import type { Difference } from "./differences";
import type { Run } from "./runs";

export function JobFiles({ runs, different }: { runs: readonly Run[]; different: readonly Difference[] }) {
  return (
    <Card title="Job files: what differs">
      {different.length === 0 ? (
        <p className="muted pad">{runs.length < 2 ? "One job file alone differs in nothing." : "The job files are equal but for the name."}</p>
      ) : (
        <div className="scroll compare-scroll" tabIndex={0} role="region" aria-label="Job files side by side">
          <table data-testid="differences" className="stacked">
            <thead>
              <tr>
                <th scope="col">Key</th>
                {runs.map((run) => (
                  <th key={run.id} scope="col">
                    {run.label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {different.map(({ path, values }) => (
                <tr key={path}>
                  <th scope="row">
                    <code>{path}</code>
                  </th>
                  {values.map((value, at) => (
                    <td key={at} data-said={runs[at]?.label}>{value === undefined ? <span className="muted">–</span> : <code>{value}</code>}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}
