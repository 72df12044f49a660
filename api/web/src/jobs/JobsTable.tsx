/** The job list as a table: only the rows in sight are drawn, the next page is read before its place comes in sight. */
import { rowSelectionFeature, tableFeatures, useTable, type Row, type RowSelectionState } from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, type Dispatch, type SetStateAction } from "react";
import type { Job } from "../wire";
import { Cell, type Around } from "./cells";
import { column, NAME_WIDTH, sortedNext, type Known } from "./columns";

const features = tableFeatures({ rowSelectionFeature });
type Features = typeof features;
const ROW_PX = 48;
const AHEAD = 12;
const TICK_PX = 44;

interface Props {
  jobs: readonly Job[];
  columns: readonly string[];
  sort: string;
  onSort: (sort: string | undefined) => void;
  selected: RowSelectionState;
  onSelect: Dispatch<SetStateAction<RowSelectionState>>;
  around: Around;
  /** What is shown is of the filter before. */
  stale: boolean;
  /** Reads the next page; null: there is none, or it is being read. */
  more: (() => void) | null;
}

export function JobsTable({ jobs, columns: ids, sort, onSort, selected, onSelect, around, stale, more }: Props) {
  const known = useMemo(() => ids.map(column).filter((one) => one !== null), [ids]);
  const columns = useMemo(
    () => known.map((one) => ({ id: one.id, header: one.title, accessorFn: (job: Job) => job.id })),
    [known],
  );
  const table = useTable({
    features,
    columns,
    data: jobs,
    getRowId: (job: Job) => job.id,
    state: { rowSelection: selected },
    onRowSelectionChange: onSelect,
  });
  const { rows } = table.getRowModel();
  const box = useRef<HTMLDivElement | null>(null);
  // eslint-disable-next-line react-hooks/incompatible-library -- nothing of it is memoized by a compiler here
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_PX,
    getItemKey: (at) => rows[at]?.id ?? at,
    overscan: AHEAD,
  });
  const seen = virtual.getVirtualItems();
  const end = (seen.at(-1)?.index ?? 0) + 1;
  useEffect(() => {
    if (end >= rows.length && rows.length > 0) more?.();
  }, [end, rows.length, more]);
  const width = TICK_PX + known.reduce((sum, one) => sum + one.width, 0);
  return (
    <div className="jobs-box" ref={box} tabIndex={0} role="region" aria-label="Job list" aria-busy={stale}>
      <table
        className="jobs"
        data-testid="jobs"
        role="table"
        aria-rowcount={more === null ? rows.length + 1 : -1}
        style={{ minWidth: width }}
      >
        <colgroup>
          <col style={{ width: TICK_PX }} />
          {known.map((one) => (
            <col key={one.id} {...(one.id !== "name" && { style: { width: one.width } })} />
          ))}
        </colgroup>
        <thead role="rowgroup">
          <tr role="row" aria-rowindex={1}>
            <th role="columnheader" className="cell-tick">
              <input
                type="checkbox"
                aria-label="Select all loaded jobs"
                checked={table.getIsAllRowsSelected()}
                onChange={table.getToggleAllRowsSelectedHandler()}
              />
            </th>
            {known.map((one) => (
              <Head key={one.id} known={one} sort={sort} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          <Space px={seen[0]?.start ?? 0} />
          {seen.map(({ index }) => {
            const row = rows[index];
            return row && <Line key={row.id} {...{ row, known, around, index }} measure={virtual.measureElement} />;
          })}
          <Space px={virtual.getTotalSize() - (seen.at(-1)?.end ?? 0)} />
        </tbody>
      </table>
    </div>
  );
}

function Head({ known, sort, onSort }: { known: Known } & Pick<Props, "sort" | "onSort">) {
  const { title, order } = known;
  if (order === null) return <th role="columnheader">{title}</th>;
  const how = sort === order ? "ascending" : sort === `-${order}` ? "descending" : "none";
  return (
    <th role="columnheader" className={known.right ? "num" : undefined} aria-sort={how}>
      <button type="button" className="sort" onClick={() => onSort(sortedNext(known, sort))}>
        {title}
        <span aria-hidden="true">{{ none: "", ascending: "↑", descending: "↓" }[how]}</span>
      </button>
    </th>
  );
}

interface LineProps {
  row: Row<Features, Job>;
  known: readonly Known[];
  around: Around;
  index: number;
  measure: (element: HTMLElement | null) => void;
}

function Line({ row, known, around, index, measure }: LineProps) {
  const job = row.original;
  const selected = row.getIsSelected();
  return (
    <tr
      ref={measure}
      role="row"
      data-index={index}
      data-job={job.id}
      aria-rowindex={index + 2}
      className={selected ? "selected" : undefined}
    >
      <td role="cell" className="cell-tick">
        <input
          type="checkbox"
          aria-label={`Select ${job.name}`}
          checked={selected}
          onChange={row.getToggleSelectedHandler()}
        />
      </td>
      {known.map((one) => (
        <td key={one.id} role="cell" className={classOf(one)}>
          <span className="cell-label">{one.title} </span>
          <Cell id={one.id} job={job} around={around} />
        </td>
      ))}
    </tr>
  );
}

/** The height of the rows that are not drawn. */
function Space({ px }: { px: number }) {
  return px > 0 ? (
    <tr aria-hidden="true" className="space">
      <td style={{ height: px }} />
    </tr>
  ) : null;
}

function classOf({ id, right, width }: Known): string {
  const own = id.includes(":") ? "drawn" : id;
  return `cell-${own}${right ? " num" : ""}${width < NAME_WIDTH && own !== "state" ? " short" : ""}`;
}
