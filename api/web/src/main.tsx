/** Where the page starts. */
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { newCache } from "./cache";
import { newRouter } from "./routes";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/jobs.css";
import "./styles/job.css";
import "./styles/submit.css";
import "./styles/access.css";

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no element #root to draw the page in");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={newCache()}>
      <RouterProvider router={newRouter()} />
    </QueryClientProvider>
  </StrictMode>,
);
