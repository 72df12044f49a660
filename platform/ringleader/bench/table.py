"""A benchmark's output for people: a row for each figure, or one wide table with several figures in a row."""

from collections.abc import Iterator

from ringleader.bench.line import Cell, Line

_COLUMNS = "{:<12} {:>12} {:>12} {:<6} {:>8}  {:<12} {:<26} {}"
_HEAD = _COLUMNS.format("case", "ringleader", "peer", "unit", "ratio", "peer is", "target", "runs")
GAP = "  "


class Table:
    """The text of a run: rows as soon as they are known, the cells of the wide table once all of them are."""

    def __init__(self) -> None:
        self._headed = False
        self._cells: dict[str, dict[str, Line]] = {}

    def add(self, line: Line, cell: Cell | None) -> Iterator[str]:
        """Lines of text to print now."""
        if cell is not None:
            self._cells.setdefault(cell.row, {})[cell.column] = line
            return
        if not self._headed:
            self._headed = True
            yield _HEAD
        yield _row(line)

    def wide(self) -> Iterator[str]:
        """The lines of the wide table, if there is one; ratios stand behind their values."""
        if not self._cells:
            return
        columns = list(dict.fromkeys(column for row in self._cells.values() for column in row))
        rows = [["", *columns]]
        for name, row in self._cells.items():
            rows.append([name, *(_cell(row.get(column)) for column in columns)])
        widths = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
        for first, *others in rows:
            texts = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            yield GAP.join([first.ljust(widths[0]), *texts])


def _cell(line: Line | None) -> str:
    if line is None or line.ringleader is None:
        return "–"
    ratio = "" if line.ratio is None else f"  ×{line.ratio:.2f}"
    return f"{_grouped(line.ringleader)}{ratio}"


def _grouped(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _row(line: Line) -> str:
    verdict = {True: " met", False: " MISSED", None: ""}[line.met]
    return _COLUMNS.format(
        line.case,
        "–" if line.ringleader is None else f"{line.ringleader:g}",
        "–" if line.peer is None else f"{line.peer:g}",
        line.unit,
        "–" if line.ratio is None else f"{line.ratio:.3g}",
        line.peer_name or "–",
        f"{line.target}{verdict}" if line.target else "–",
        line.runs,
    )
