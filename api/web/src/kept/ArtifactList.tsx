/** The files that a job has left: weights at its end, what it saved on the way, and its metrics for TensorBoard. */
import { useMemo } from "react";
import { artifactUrl, tensorboardUrl } from "../api";
import { bytes, count } from "../format";
import type { Artifact } from "../wire";
import { newestImages, savedAs } from "./kept";

const IMAGES = 12;

interface Props {
  job: string;
  artifacts: readonly Artifact[];
  /** Whether there are metrics. */
  measured: boolean;
}

export function ArtifactList({ job, artifacts, measured }: Props) {
  return (
    <>
      <Images job={job} artifacts={artifacts} />
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
    </>
  );
}

/** The newest images, small; each is saved by a click. */
function Images({ job, artifacts }: { job: string; artifacts: readonly Artifact[] }) {
  const images = useMemo(() => newestImages(artifacts, IMAGES), [artifacts]);
  if (images.length === 0) return null;
  return (
    <ul className="images" aria-label="Newest images">
      {images.map(({ name: file }) => {
        const { name, step } = savedAs(file);
        const said = step === null ? name : `${name}, step ${count(step)}`;
        return (
          <li key={file}>
            <a href={artifactUrl(job, file)} download={file}>
              <img src={artifactUrl(job, file)} alt={said} loading="lazy" decoding="async" />
              <span aria-hidden="true">{said}</span>
            </a>
          </li>
        );
      })}
    </ul>
  );
}
