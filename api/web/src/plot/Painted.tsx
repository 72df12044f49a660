/** A canvas that is painted anew where its width, the theme or what it shows changes. */
import { useEffect, useRef, type ReactNode } from "react";
import { readTheme, useDark, type Theme } from "./palette";
import type { Key } from "./picture";
import { SaveButtons, ValueTable } from "./SaveButtons";
import type { Cell } from "./save";
import { useWidth } from "./useWidth";
import "../styles/plot.css";

interface Props {
  name: string;
  height: number;
  /** Stable while it paints the same. */
  paint: (pen: CanvasRenderingContext2D, width: number, height: number, theme: Theme) => void;
  rows: () => Cell[][];
  /** The legend that its picture has as a file. */
  keys: (theme: Theme) => Key[];
  /** The pointer in pixels of the canvas and its width; null once it has left. */
  onPoint: (at: { x: number; y: number; width: number } | null) => void;
  /** What stands below it, such as a legend. */
  children?: ReactNode;
}

export function Painted({ name, height, paint, rows, keys, onPoint, children }: Props) {
  const [box, width] = useWidth();
  const canvas = useRef<HTMLCanvasElement>(null);
  const dark = useDark();
  useEffect(() => {
    const pen = canvas.current?.getContext("2d");
    if (!pen || width === 0) return;
    const ratio = window.devicePixelRatio;
    pen.canvas.width = width * ratio;
    pen.canvas.height = height * ratio;
    pen.scale(ratio, ratio);
    paint(pen, width, height, readTheme());
    // `dark`: the theme is read from the page.
  }, [paint, width, height, dark]);
  return (
    <>
      <div className="plot painted" ref={box}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${name}; its values are in the table below`}
          style={{ width, height }}
          onPointerMove={({ nativeEvent }) => onPoint({ x: nativeEvent.offsetX, y: nativeEvent.offsetY, width })}
          onPointerLeave={() => onPoint(null)}
        />
      </div>
      {children}
      <SaveButtons name={name} picture={() => ({ title: name, x: "", keys: keys(readTheme()) })} rows={rows} canvas={() => canvas.current} />
      <ValueTable name={name} rows={rows} />
    </>
  );
}
