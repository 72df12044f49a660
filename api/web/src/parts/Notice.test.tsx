import { expect, test } from "vitest";
import { whyTitle } from "./Notice";

test("a job that is paused or stops has not ended", () => {
  expect(whyTitle("failed")).toBe("Why it failed");
  expect(whyTitle("paused")).toBe("Why it is paused");
  expect(whyTitle("stopping")).toBe("Why it is stopping");
  expect(whyTitle("cancelled")).toBe("Why it ended");
});
