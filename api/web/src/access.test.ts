import { expect, test } from "vitest";
import { rolesText, scopeOf } from "./access";

test("roles are told by project, and the star in words", () => {
  expect(rolesText({ "*": "viewer", vision: "admin" })).toBe("all projects: viewer, vision: admin");
  expect(rolesText({})).toBe("");
});

test("a scope is a role in a project, in all where none is named, and none where no role is chosen", () => {
  expect(scopeOf("viewer", " vision ")).toEqual({ vision: "viewer" });
  expect(scopeOf("viewer", " ")).toEqual({ "*": "viewer" });
  expect(scopeOf("", "vision")).toBeNull();
});
