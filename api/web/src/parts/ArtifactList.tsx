/** The files that a job has left: weights at its end, and what it saved on the way. */
import { artifactUrl } from "../api";
import { bytes } from "../format";
import type { Artifact } from "../wire";

export function ArtifactList({ job, artifacts }: { job: string; artifacts: readonly Artifact[] }) {
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
    </ul>
  );
}
