import { describe, expect, test } from "vitest";
import { lostWhere } from "./Tiles";

describe("the tile of lost steps", () => {
  test("counts over all attempts where there was more than one", () => {
    expect(lostWhere(2, 0)).toBe("over 2 attempts");
    expect(lostWhere(1, 3)).toBe("over all recoveries");
    expect(lostWhere(1, 0)).toBe("nothing to lose yet");
  });
});
