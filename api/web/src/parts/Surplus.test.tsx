import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { Surplus } from "./Surplus";

test("a job's page says where its surplus comes from, as the API does", () => {
  const drawn = renderToStaticMarkup(
    <Surplus told="workers above min (1) use free places only: this cluster does not grow" />,
  );
  expect(drawn).toContain("Workers above min (1) use free places only: this cluster does not grow.");
  expect(renderToStaticMarkup(<Surplus told="" />)).toBe("");
});
