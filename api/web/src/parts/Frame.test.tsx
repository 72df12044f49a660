import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, test } from "vitest";
import { Frame } from "./Frame";

describe("the frame around every view", () => {
  const shown = renderToStaticMarkup(<Frame path="/jobs/1">A view</Frame>);

  test("leads to the guide and to MLflow, which are pages of their own", () => {
    expect(shown).toContain('<a href="/guide/" target="_blank" rel="noreferrer">Guide');
    expect(shown).toContain('<a href="/mlflow/" target="_blank" rel="noreferrer">MLflow');
  });

  test("marks where one is", () => {
    expect(shown).toContain('<a href="/" aria-current="page">Jobs</a>');
    expect(shown).not.toContain('href="/submit" aria-current');
  });
});
