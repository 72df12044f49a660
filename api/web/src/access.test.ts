import { expect, test } from "vitest";
import { daysAtFirst, mostDays, rolesText, scopeOf } from "./access";

test("roles are told by project, and the star in words", () => {
  expect(rolesText({ "*": "viewer", vision: "admin" })).toBe("all projects: viewer, vision: admin");
  expect(rolesText({})).toBe("");
});

test("a scope is a role in a project, in all where none is named, and none where no role is chosen", () => {
  expect(scopeOf("viewer", " vision ")).toEqual({ vision: "viewer" });
  expect(scopeOf("viewer", " ")).toEqual({ "*": "viewer" });
  expect(scopeOf("", "vision")).toBeNull();
});

test("a token's end is within what the server allows, and ninety days where it allows any", () => {
  expect([mostDays(null), daysAtFirst(null)]).toEqual([null, 90]);
  expect([mostDays(30 * 86_400), daysAtFirst(30)]).toEqual([30, 30]);
  expect(mostDays(86_399)).toBe(0.99);
  expect(daysAtFirst(365)).toBe(90);
});
