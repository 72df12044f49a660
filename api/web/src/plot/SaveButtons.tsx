/** A chart's values as a table and as CSV, its picture as PNG. */
import { useState } from "react";
import { readTheme } from "./palette";
import { savePng, type Picture } from "./picture";
import { saveCsv, type Cell } from "./save";

interface Props {
  name: string;
  /** What stands round the canvas in the picture; its title names the files. */
  picture: () => Picture;
  /** The values, the first row being the head. */
  rows: () => Cell[][];
  canvas: () => HTMLCanvasElement | null;
}

export function SaveButtons({ name, picture, rows, canvas }: Props) {
  const draw = (): void => {
    const drawn = canvas();
    if (drawn) savePng(picture(), drawn, readTheme());
  };
  return (
    <div className="plot-save">
      <button type="button" className="small quiet" aria-label={`${name} as CSV`} onClick={() => saveCsv(picture().title, rows())}>
        CSV
      </button>
      <button type="button" className="small quiet" aria-label={`${name} as PNG`} onClick={draw}>
        PNG
      </button>
    </div>
  );
}

/** What a chart shows, as a table: for screen readers and for whoever likes it better. Made once it is opened. */
export function ValueTable({ name, rows }: { name: string; rows: () => Cell[][] }) {
  const [open, setOpen] = useState(false);
  const [head, ...body] = open ? rows() : [];
  return (
    <details className="plot-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{name} as a table</summary>
      {head && (
        <div className="scroll" tabIndex={0} role="region" aria-label={`${name} as a table`}>
          <table>
            <thead>
              <tr>
                {head.map((cell, at) => (
                  <th key={at} scope="col" className={at > 0 ? "num" : ""}>
                    {cell}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {body.map((row, at) => (
                <tr key={at}>
                  {row.map((cell, column) => (
                    <td key={column} className={column > 0 ? "num" : ""}>
                      {cell}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}
