/** A chart's values as a table and as CSV, its picture as PNG. */
import { useState } from "react";
import { readTheme } from "./palette";
import { saveCsv, savePng, type Cell } from "./save";

interface Props {
  name: string;
  /** The values, the first row being the head. */
  rows: () => Cell[][];
  canvas: () => HTMLCanvasElement | null;
}

export function SaveButtons({ name, rows, canvas }: Props) {
  const picture = (): void => {
    const drawn = canvas();
    if (drawn) savePng(name, drawn, readTheme());
  };
  return (
    <div className="plot-save">
      <button type="button" className="small quiet" aria-label={`${name} as CSV`} onClick={() => saveCsv(name, rows())}>
        CSV
      </button>
      <button type="button" className="small quiet" aria-label={`${name} as PNG`} onClick={picture}>
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
