/** What admission would say to a job file now. */
import { sentence } from "../format";
import { workerBounds, type Admission } from "../wire";
import { Card } from "./Card";

export function Preview({ admission }: { admission: Admission }) {
  const { starts_now: starts, pending_reason: why, logical_shards: shards, spec } = admission;
  const { min, max } = workerBounds(spec);
  return (
    <Card title="If submitted now" className={starts ? "preview preview-starts" : "preview preview-waits"}>
      <div data-testid="preview" role="status">
        <p>
          <b>{starts ? "It would start at once." : "It would wait."}</b>
        </p>
        {why && <p>{sentence(why.message)}</p>}
        {why?.hint && <p className="muted">{why.hint}</p>}
        <dl className="facts">
          <div>
            <dt>Workers</dt>
            <dd>{min === max ? max : `${min} to ${max}`}</dd>
          </div>
          <div>
            <dt>Logical shards</dt>
            <dd>{shards}, fixed for the lifetime of the job</dd>
          </div>
          {admission.surplus && (
            <div>
              <dt>Surplus</dt>
              <dd>{admission.surplus}</dd>
            </div>
          )}
          <div>
            <dt>Reproducible</dt>
            <dd>{admission.reproducible ? "yes" : `no: ${admission.reproducible_why}`}</dd>
          </div>
        </dl>
      </div>
    </Card>
  );
}
