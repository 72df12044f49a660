/** Where the page starts. */
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/job.css";
import "./styles/charts.css";
import "./styles/submit.css";
import "./styles/access.css";

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no element #root to draw the page in");
createRoot(root).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
