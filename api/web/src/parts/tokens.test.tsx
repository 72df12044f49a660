import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { NewTokenForm } from "./Tokens";

const form = (most: number | null): string => {
  const drawn = renderToStaticMarkup(<NewTokenForm attempt={() => Promise.resolve(null)} most={most} />);
  return /<input type="number"[^>]*>/.exec(drawn)?.[0] ?? "";
};

test("whose tokens have to end is asked for an end within what the server allows", () => {
  expect(form(30)).toContain('max="30"');
  expect(form(30)).toContain('value="30"');
  expect(form(30)).toContain("required");
});

test("whose tokens may last is offered ninety days, and never", () => {
  expect(form(null)).toContain('max="3650"');
  expect(form(null)).toContain('value="90"');
  expect(form(null)).toContain('placeholder="never"');
  expect(form(null)).not.toContain("required");
});
