/** The files that a job has left: weights at its end, what it saved on the way, and its metrics for TensorBoard. */
import { artifactUrl, tensorboardUrl } from "../api";
import { bytes } from "../format";
import type { Artifact } from "../wire";

interface Props {
  job: string;
  artifacts: readonly Artifact[];
  /** Whether there are metrics. */
  measured: boolean;
}

export function ArtifactList({ job, artifacts, measured }: Props) {
  return (
    <ul className="artifacts" tabIndex={0} aria-label="Artifacts">
      {artifacts.map(({ name, size_bytes }) => (
        <li key={name}>
          <a href={artifactUrl(job, name)} download={name}>
            {name}
          </a>{" "}
          <span className="muted">{bytes(size_bytes)}</span>
        </li>
      ))}
      {measured && (
        <li>
          <a href={tensorboardUrl(job)} download>
            TensorBoard event file
          </a>{" "}
          <span className="muted">all metrics</span>
        </li>
      )}
    </ul>
  );
}
