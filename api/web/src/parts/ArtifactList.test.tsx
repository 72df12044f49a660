import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { ArtifactList } from "./ArtifactList";

test("each artifact of a job is a link that downloads it, with its size", () => {
  const drawn = renderToStaticMarkup(
    <ArtifactList job="job_a" artifacts={[{ name: "net-00000004.pt", size_bytes: 1200 }]} />,
  );
  expect(drawn).toContain('href="/api/v1/jobs/job_a/artifacts/net-00000004.pt" download="net-00000004.pt"');
  expect(drawn).toContain("1.2 KB");
});
