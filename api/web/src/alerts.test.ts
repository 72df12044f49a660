import { expect, test } from "vitest";
import { alertsAsked, alertsTold, channelText, whenText, type Alert, type AlertState } from "./alerts";

function told(...states: AlertState[]) {
  const items = states.map((state) => ({ state }) as Alert);
  return alertsTold({ items, next_cursor: null });
}

test("a job without alerts says nothing of them", () => {
  expect(told()).toBeNull();
});

test("a job's alerts are counted, those that did not arrive by name", () => {
  expect(told("sent")).toEqual({ title: "1 alert", failed: false });
  expect(told("sent", "pending", "failed")).toEqual({
    title: "3 alerts, 1 still to be sent, 1 could not be sent",
    failed: true,
  });
  const page = { items: [{ state: "sent" } as Alert], next_cursor: "x" };
  expect(alertsTold(page)?.title).toBe("More than 1 alert");
});

test("an address asks for what there is, and nothing else", () => {
  expect(alertsAsked({ job: "job_1", state: "failed", project: "", odd: 1 })).toEqual({ job: "job_1", state: "failed" });
  expect(alertsAsked({ state: "odd", job: 3 })).toEqual({});
});

test("a condition is told by its own keys alone", () => {
  const none = { state: null, metric: null, above: null, below: null, steps: 1, over_s: 600 };
  expect(whenText({ ...none, state: "failed" })).toBe("state: failed");
  expect(whenText({ ...none, metric: "loss", above: 10, steps: 3 })).toBe("metric: loss, above: 10, steps: 3");
  expect(whenText({ ...none, goodput_below: 0.5 })).toBe("goodput_below: 0.5, over_s: 600");
  expect(whenText(none)).toBe("");
});

test("a channel is told without its secret's value", () => {
  const none = { webhook: null, secret: null, slack: null, mail: null };
  expect(channelText({ ...none, webhook: "https://h/x", secret: "KEY" })).toBe("webhook https://h/x");
  expect(channelText({ ...none, slack: "SLACK_URL" })).toBe("slack SLACK_URL");
  expect(channelText({ ...none, mail: "a@example.org" })).toBe("mail a@example.org");
});
