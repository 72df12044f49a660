/** A chart's picture as a PNG file: title, canvas, the name of its x axis and a legend, on the page's ground. */
import type { Theme } from "./palette";
import { fileName, save } from "./save";

/** An entry of a legend: a line with these dashes, or without them a filled square. */
export interface Key {
  label: string;
  colour: string;
  dash?: readonly number[];
  alpha?: number;
}

export interface Picture {
  title: string;
  /** The name of the x axis; empty where the canvas has it. */
  x: string;
  keys: readonly Key[];
}

const [HEAD, AXIS, ROW, SIDE, SWATCH] = [34, 18, 20, 14, 28];
const FONT = "12px system-ui, sans-serif";

export function savePng({ title, x, keys }: Picture, canvas: HTMLCanvasElement, theme: Theme): void {
  const ratio = window.devicePixelRatio;
  const picture = document.createElement("canvas");
  const pen = picture.getContext("2d");
  if (pen === null) return;
  const [width, height] = [canvas.width / ratio, canvas.height / ratio];
  pen.font = FONT;
  const rows = placed(keys, width - 2 * SIDE, (text) => pen.measureText(text).width);
  const foot = (x ? AXIS : 0) + (rows.length > 0 ? rows.length * ROW + 10 : 0);
  picture.width = canvas.width;
  picture.height = (HEAD + height + foot) * ratio;
  // A canvas forgets all of it with its size.
  pen.scale(ratio, ratio);
  pen.fillStyle = theme.surface;
  pen.fillRect(0, 0, width, HEAD + height + foot);
  pen.fillStyle = theme.ink;
  pen.font = "600 14px system-ui, sans-serif";
  pen.fillText(title, SIDE, 23, width - 2 * SIDE);
  pen.drawImage(canvas, 0, HEAD, width, height);
  pen.font = FONT;
  if (x) {
    pen.fillStyle = theme.muted;
    pen.textAlign = "center";
    pen.fillText(x, width / 2, HEAD + height + 11);
    pen.textAlign = "left";
  }
  rows.forEach((row, at) => {
    for (const { key, left } of row) drawKey(pen, key, SIDE + left, HEAD + height + (x ? AXIS : 0) + at * ROW + 14, theme, width - 2 * SIDE);
  });
  picture.toBlob((blob) => blob && save(`${fileName(title)}.png`, blob), "image/png");
}

/** The entries in rows as wide as the picture, each with its distance from the left. */
export function placed(keys: readonly Key[], width: number, measure: (text: string) => number): { key: Key; left: number }[][] {
  const rows: { key: Key; left: number }[][] = [];
  let left = Infinity;
  for (const key of keys) {
    const needed = SWATCH + measure(key.label);
    if (left + needed > width) {
      rows.push([]);
      left = 0;
    }
    rows.at(-1)?.push({ key, left });
    left += needed + 16;
  }
  return rows;
}

function drawKey(pen: CanvasRenderingContext2D, { label, colour, dash, alpha = 1 }: Key, left: number, below: number, theme: Theme, most: number): void {
  if (dash) {
    pen.strokeStyle = colour;
    pen.lineWidth = 2.5;
    pen.setLineDash([...dash]);
    pen.beginPath();
    pen.moveTo(left, below - 4);
    pen.lineTo(left + SWATCH - 6, below - 4);
    pen.stroke();
    pen.setLineDash([]);
  } else {
    pen.globalAlpha = alpha;
    pen.fillStyle = colour;
    pen.fillRect(left + SWATCH - 16, below - 9, 10, 10);
    pen.globalAlpha = 1;
  }
  pen.fillStyle = theme.ink;
  pen.fillText(label, left + SWATCH, below, most - SWATCH);
}
