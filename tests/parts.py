"""The parts of the tests: `--part everyday` is a part of `--part all`; `--part rest` is what `all` leaves out.

`all` has every test but those that take longest, and of the cases of one that takes long as many as `ALL` grants:
products of mode, world and moment cost hours. `seconds.json` has, for functions that take long, the seconds of a case
and the number of cases as measured.

- A function whose cases together take no longer than its grant, or that is not in the table, runs whole.
- Of any other as many cases as fit in that, at least one: first those with a value that no case before them has.
- One whose single case takes longer than `LONG_S` is not everyday, unless it has the mark `everyday`; one whose case
  takes longer than `LONGEST_S` is not in `all` either.
- Of the tests that start clusters and services, the files in `STARTING` are everyday, no others.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE / "seconds.json"
LONG_S, LONGEST_S = 1.0, 40.0
LISTED_S = 0.5
"""Functions that take less are not listed."""
CLUSTERS = ("integration/", "e2e/", "chaos/")
STARTING = (
    "integration/test_runtime_job.py",
    "integration/test_mlflow_export.py",
    "integration/test_cli_stack.py",
    "e2e/test_page.py",
)
PARTS = ("everyday", "all", "rest")

Table = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Grant:
    """The seconds that all cases of one function may take, on one core, in a part."""

    plain_s: float
    clusters_s: float

    def cases(self, function: str, count: int, table: Table) -> int:
        """How many of a function's cases fit, at least one."""
        granted_s = self.clusters_s if function.startswith(CLUSTERS) else self.plain_s
        case_s = _case_s(function, table)
        return count if case_s * count <= granted_s else max(1, int(granted_s / case_s))


EVERYDAY = Grant(plain_s=0.5, clusters_s=float("inf"))
ALL = Grant(plain_s=3.0, clusters_s=12.0)


def function_of(nodeid: str) -> str:
    """unit/test_x.py::test_y, without the case."""
    return nodeid.removeprefix("tests/").partition("[")[0]


def spread(cases: Iterable[str]) -> list[str]:
    """Cases in the order in which they are taken: each value of a parameter as early as can be, else as drawn.

    Drawn by the name's digest: by a stride, the cases of a product would all have the same value of a parameter.
    """
    seen: set[str] = set()
    first, others = [], []
    for case in sorted(cases, key=lambda case: sha256(case.encode()).digest()):
        values = set(case.partition("[")[2].rstrip("]").split("-"))
        (others if values <= seen else first).append(case)
        seen |= values
    return first + others


def chosen(nodeids: Sequence[str], marked: Iterable[str], part: str, table: Table) -> set[str]:
    """The tests of a part, by their names; the functions of `marked` have the mark `everyday`."""
    cases: dict[str, list[str]] = defaultdict(list)
    for nodeid in nodeids:
        cases[function_of(nodeid)].append(nodeid)
    in_all: set[str] = set()
    every_day: set[str] = set()
    functions = set(map(function_of, marked))
    for function, names in cases.items():
        order = spread(names)
        if _case_s(function, table) <= LONGEST_S:
            in_all.update(order[: ALL.cases(function, len(order), table)])
        if function in functions or _is_everyday(function, table):
            every_day.update(order[: EVERYDAY.cases(function, len(order), table)])
    in_all |= every_day
    return {"everyday": every_day, "all": in_all, "rest": set(nodeids) - in_all}[part]


def _is_everyday(function: str, table: Table) -> bool:
    if function.startswith(CLUSTERS):
        return function.startswith(STARTING)
    return _case_s(function, table) <= LONG_S


def _case_s(function: str, table: Table) -> float:
    """The seconds of a case; 0 of one that is not listed."""
    return table.get(function, (0.0, 0))[0]


def choose(items: list[pytest.Item], part: str | None) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items of a part, None for all of them with all their cases, and the others."""
    if part is None:
        return items, []
    marked = [item.nodeid for item in items if item.get_closest_marker("everyday")]
    names = chosen([item.nodeid for item in items], marked, part, json.loads(TABLE.read_text()))
    return [item for item in items if item.nodeid in names], [
        item for item in items if item.nodeid not in names
    ]


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
