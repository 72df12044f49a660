/** Colours and dashes of runs, and the colours that a canvas takes from the page. */
import { useSyncExternalStore } from "react";
import type { Look } from "./lines";

/** Colours that colour-blind readers tell apart; each in several dashes. `styles/plot.css` names them. */
export const COLOURS = 6;
export const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export interface Theme {
  surface: string;
  ink: string;
  muted: string;
  line: string;
  recovery: string;
  bad: string;
  runs: readonly string[];
}

/** The look of the run at this place: all colours solid, then all dashed, and so on. */
export function lookOf(place: number): Look {
  return { colour: place % COLOURS, dash: Math.floor(place / COLOURS) % DASHES.length };
}

export function colourOf(theme: Theme, look: Look): string {
  return theme.runs[look.colour] ?? theme.ink;
}

/** The page's colours as they are now. */
export function readTheme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string): string => style.getPropertyValue(name).trim();
  return {
    surface: of("--surface"),
    ink: of("--ink"),
    muted: of("--muted"),
    line: of("--line"),
    recovery: of("--p-decide"),
    bad: of("--bad"),
    runs: Array.from({ length: COLOURS }, (_, at) => of(`--run-${at}`)),
  };
}

/** Whether the reader's system is dark; a canvas is drawn again where it changes. */
export function useDark(): boolean {
  return useSyncExternalStore(listen, () => window.matchMedia(DARK).matches);
}

const DARK = "(prefers-color-scheme: dark)";

function listen(changed: () => void): () => void {
  const media = window.matchMedia(DARK);
  media.addEventListener("change", changed);
  return () => media.removeEventListener("change", changed);
}
