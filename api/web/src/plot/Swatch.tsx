/** A run's colour and dashes, as a legend shows them. */
import type { Look } from "./lines";
import { DASHES } from "./palette";
import "../styles/plot.css";

export function Swatch({ look }: { look: Look }) {
  return (
    <svg className={`run-swatch run-${look.colour}`} width="22" height="8" aria-hidden="true">
      <line x1="0" x2="22" y1="4" y2="4" strokeDasharray={DASHES[look.dash]?.join(" ")} />
    </svg>
  );
}
