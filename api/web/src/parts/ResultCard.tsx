/** What a succeeded job left behind. */
import { count, duration, number, percent } from "../format";
import type { Result } from "../wire";
import { Card } from "./Card";
import { Copy } from "./Copy";

export function ResultCard({ result }: { result: Result }) {
  const accuracy = result.scores.accuracy;
  const others = Object.entries(result.scores).filter(([name]) => name !== "accuracy");
  return (
    <Card title="Result" className="result">
      <div className="result-grid">
        {accuracy !== undefined && <Figure label="Accuracy" value={percent(accuracy, 2)} strong />}
        {others.map(([name, value]) => (
          <Figure key={name} label={name.replaceAll("_", " ")} value={number(value)} />
        ))}
        <Figure label="Final loss" value={number(result.loss)} />
        <Figure label="Steps" value={count(result.steps)} />
        <Figure label="Samples" value={count(result.samples)} />
        {result.attempts > 1 && <Figure label="Attempts" value={count(result.attempts)} />}
        <Figure label="Generations" value={count(result.generations)} />
        <Figure label="Recoveries" value={count(result.recoveries)} />
        {result.steps_lost > 0 && <Figure label="Steps lost" value={count(result.steps_lost)} />}
        <Figure label="Wall time" value={duration(result.wall_s)} />
      </div>
      <dl className="facts">
        {result.weights_sha256 && (
          <div>
            <dt>Weights SHA-256</dt>
            <dd>
              <Copy
                value={result.weights_sha256}
                shown={`${result.weights_sha256.slice(0, 16)}…`}
                label="the SHA-256 of the weights"
              />
            </dd>
          </div>
        )}
        <div>
          <dt>Reproducible</dt>
          <dd>
            {result.reproducible ? (
              <span className="good">yes: the same bits, whichever workers computed them</span>
            ) : (
              <span>no{result.reproducible_why && `: ${result.reproducible_why}`}</span>
            )}
          </dd>
        </div>
        {result.weights_uri && (
          <div>
            <dt>Weights</dt>
            <dd>
              <Copy value={result.weights_uri} label="the URI of the weights" />
            </dd>
          </div>
        )}
      </dl>
      <WallSplit result={result} />
    </Card>
  );
}

function Figure({ label, value, strong = false }: { label: string; value: string; strong?: boolean }) {
  return (
    <div className={`figure ${strong ? "figure-strong" : ""}`}>
      <span>{label}</span>
      <b>{value}</b>
    </div>
  );
}

function WallSplit({ result }: { result: Result }) {
  const parts = [
    ["compute", "Compute", result.compute_s],
    ["comm", "Exposed communication", result.exposed_communication_s],
    ["idle", "Idle", result.idle_s],
    ["recovery", "Recovery", result.recovery_s],
  ] as const;
  const rest = Math.max(0, result.wall_s - parts.reduce((sum, [, , seconds]) => sum + seconds, 0));
  const all = [...parts, ["rest", "Other", rest] as const].filter(([, , seconds]) => seconds > 0);
  const sum = all.reduce((total, [, , seconds]) => total + seconds, 0);
  if (sum === 0) return null;
  return (
    <div className="split">
      <div
        className="split-bar"
        role="img"
        aria-label={all.map(([, label, seconds]) => `${label} ${duration(seconds)}`).join(", ")}
      >
        {all.map(([key, , seconds]) => (
          <span key={key} className={`split-${key}`} style={{ flexGrow: (100 * seconds) / sum }} />
        ))}
      </div>
      <ul className="legend">
        {all.map(([key, label, seconds]) => (
          <li key={key}>
            <i className={`swatch split-${key}`} aria-hidden="true" />
            {label} <b>{duration(seconds)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}
