import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { ArtifactList } from "./ArtifactList";

const ARTIFACTS = [{ name: "net-00000004.pt", size_bytes: 1200 }];

test("each artifact of a job is a link that downloads it, with its size", () => {
  const drawn = renderToStaticMarkup(<ArtifactList job="job_a" artifacts={ARTIFACTS} measured={false} />);
  expect(drawn).toContain('href="/api/v1/jobs/job_a/artifacts/net-00000004.pt" download="net-00000004.pt"');
  expect(drawn).toContain("1.2 KB");
  expect(drawn).not.toContain("TensorBoard");
});

test("a job with metrics has them as a file for TensorBoard", () => {
  const drawn = renderToStaticMarkup(<ArtifactList job="job_a" artifacts={[]} measured />);
  expect(drawn).toContain('href="/api/v1/jobs/job_a/tensorboard"');
});
