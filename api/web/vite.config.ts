/** How the page is built: into the API package, without inlined files, so that `default-src 'self'` holds. */
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const api = process.env.RINGLEADER_URL ?? "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "../ringleader_api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: {
    fs: { allow: ["../.."] },
    proxy: { "/api": api, "/login": api, "/mlflow": api, "/guide": api },
  },
  test: { environment: "node", css: true, include: ["src/**/*.test.{ts,tsx}"] },
});
