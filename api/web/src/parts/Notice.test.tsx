import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { whyTitle, WhyNotice } from "./Notice";

test("a job that is paused or stops has not ended", () => {
  expect(whyTitle("failed")).toBe("Why it failed");
  expect(whyTitle("paused")).toBe("Why it is paused");
  expect(whyTitle("stopping")).toBe("Why it is stopping");
  expect(whyTitle("cancelled")).toBe("Why it ended");
});

test("a traceback can be scrolled with keys, and a reason in one line has none", () => {
  const drawn = (message: string): string =>
    renderToStaticMarkup(<WhyNotice tone="bad" title="Why it failed" why={{ code: "entrypoint_raised", message, hint: "" }} />);
  expect(drawn("It broke:\nTraceback\nKeyError: 1")).toContain('<pre class="traceback" tabindex="0" role="region" aria-label="Traceback">');
  expect(drawn("It broke")).not.toContain("<pre");
});
