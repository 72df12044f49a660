"""The everyday part of the tests, and the rest: `--part everyday` and `--part rest` are all tests, each once.

`seconds.json` has, for functions that take long, the seconds of a case and the number of cases as measured:

- A function whose cases together take no longer than `WHOLE_S`, or that is not in the table, runs whole every day.
- Of any other as many cases as fit in that, at least one, evenly from first to last; the others are the rest.
- One whose single case takes longer than `LONG_S` is the rest, unless it has the mark `everyday`.
- Of the tests that start clusters and services, the files in `STARTING` are everyday, all others the rest.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE / "seconds.json"
WHOLE_S = 1.0
LONG_S = 2.0
LISTED_S = 0.5
"""Functions that take less are not listed."""
STARTING = (
    "integration/test_runtime_job.py",
    "integration/test_mlflow_export.py",
    "integration/test_cli_stack.py",
    "e2e/test_page.py",
)
PARTS = ("all", "everyday", "rest")


def function_of(nodeid: str) -> str:
    """unit/test_x.py::test_y, without the case."""
    return nodeid.removeprefix("tests/").partition("[")[0]


def everyday(functions: Sequence[str], marked: Sequence[bool], table: dict[str, list[float]]) -> list[bool]:
    """Whether each test is in the everyday part: by its function, and its turn among the cases of that."""
    count: dict[str, int] = defaultdict(int)
    for function in functions:
        count[function] += 1
    turn: dict[str, int] = defaultdict(int)
    chosen = []
    for function, mark in zip(functions, marked, strict=True):
        chosen.append(mark or turn[function] in _turns(function, count[function], table))
        turn[function] += 1
    return chosen


def _turns(function: str, cases: int, table: dict[str, list[float]]) -> Iterable[int]:
    """The cases of a function that run every day."""
    if function.startswith(("integration/", "e2e/", "chaos/")):
        return range(cases) if function.startswith(STARTING) else ()
    case_s, _ = table.get(function, (0.0, 0))
    if case_s * cases <= WHOLE_S:
        return range(cases)
    if case_s > LONG_S:
        return ()
    taken = max(1, int(WHOLE_S / case_s))
    return {turn * cases // taken for turn in range(taken)}


def choose(items: list[pytest.Item], part: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items of a part, and those of the other one."""
    if part == "all":
        return items, []
    # By name: what is chosen does not depend on the order in which files are collected.
    order = sorted(range(len(items)), key=lambda number: items[number].nodeid)
    functions = [function_of(items[number].nodeid) for number in order]
    marked = [items[number].get_closest_marker("everyday") is not None for number in order]
    table = json.loads(TABLE.read_text())
    in_part = [False] * len(items)
    for number, is_everyday in zip(order, everyday(functions, marked, table), strict=True):
        in_part[number] = is_everyday == (part == "everyday")
    kept = [item for item, stays in zip(items, in_part, strict=True) if stays]
    return kept, [item for item, stays in zip(items, in_part, strict=True) if not stays]


class Stopwatch:
    """Measures what each function takes, and writes the table anew: `--measure`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._cases: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function = function_of(report.nodeid)
        self._seconds[function] += report.duration
        if not report.skipped:
            self._cases[function].add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        for function, cases in self._cases.items():
            table.pop(function, None)
            seconds = self._seconds[function]
            if seconds >= LISTED_S:
                table[function] = [round(seconds / len(cases), 3), len(cases)]
        lines = (f"{json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table))
        TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
