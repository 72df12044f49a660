import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { Chosen } from "./Chosen";

test("a job's page says what auto was chosen as and why, and nothing of a framework that was named", () => {
  const why = "a session cannot keep what train does: line 4: several backwards in one turn";
  const drawn = renderToStaticMarkup(<Chosen spec={{ framework: "ray_train_hosted", framework_why: why }} />);
  expect(drawn).toContain(`framework ray_train_hosted, chosen because ${why}`);
  expect(renderToStaticMarkup(<Chosen spec={{ framework: "native", framework_why: null }} />)).toBe("");
  expect(renderToStaticMarkup(<Chosen spec={{}} />)).toBe("");
});
