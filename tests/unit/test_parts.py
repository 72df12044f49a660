"""The parts of the tests: everyday in all, and all with the rest is every test once."""

import math

import pytest
from parts import ALL, EVERYDAY, LONG_S, LONGEST_S, PARTS, chosen, spread

A = "unit/test_a.py::test_b"


def cases_of(function: str, count: int) -> list[str]:
    return [f"tests/{function}[{case}]" for case in range(count)]


def taken(function: str, count: int, case_s: float, part: str, *, marked: bool = False) -> int:
    names = cases_of(function, count)
    return len(chosen(names, names if marked else [], part, {function: [case_s, count]}))


def test_a_function_that_takes_little_runs_whole() -> None:
    assert taken(A, 10, EVERYDAY.plain_s / 10, "everyday") == 10


@pytest.mark.parametrize(("part", "count"), [("everyday", 99), ("all", 99), ("rest", 0)])
def test_one_that_is_not_listed_runs_whole(part: str, count: int) -> None:
    assert len(chosen(cases_of(A, 99), [], part, {})) == count


@pytest.mark.parametrize(("part", "grant"), [("everyday", EVERYDAY), ("all", ALL)])
def test_of_one_that_takes_long_as_many_cases_run_as_fit(part: str, grant: object) -> None:
    assert taken(A, 80, 0.5, part) == grant.plain_s / 0.5  # type: ignore[attr-defined]


def test_at_least_one_case_runs() -> None:
    assert taken(A, 3, LONG_S, "everyday") == 1
    assert taken(A, 3, LONGEST_S, "all") == 1


def test_one_whose_case_takes_longer_is_not_everyday_unless_it_is_marked() -> None:
    assert taken(A, 3, LONG_S + 0.1, "everyday") == 0
    assert taken(A, 3, LONG_S + 0.1, "everyday", marked=True) == 1


def test_those_that_take_longest_are_the_rest_but_for_a_case_of_a_marked_one() -> None:
    assert (taken(A, 3, LONGEST_S + 1, "all"), taken(A, 3, LONGEST_S + 1, "rest")) == (0, 3)
    assert (
        taken(A, 3, LONGEST_S + 1, "all", marked=True),
        taken(A, 3, LONGEST_S + 1, "rest", marked=True),
    ) == (1, 2)


def test_of_files_that_start_clusters_the_named_ones_are_everyday_and_all_have_a_case_in_all() -> None:
    page, readme = "e2e/test_page.py::test_a", "e2e/test_readme.py::test_a"
    assert (taken(page, 3, 30.0, "everyday"), taken(readme, 3, 30.0, "everyday")) == (3, 0)
    assert (taken(page, 3, 30.0, "all"), taken(readme, 3, 30.0, "all")) == (3, 1)


def test_the_parts_have_every_test_once_and_everyday_is_in_all() -> None:
    table = {f"unit/test_a.py::test_{number}": [0.05 * 2**number, 7] for number in range(10)}
    names = [name for function in table for name in cases_of(function, 7)]
    everyday, every, rest = (chosen(names, names[:3], part, table) for part in PARTS)
    assert everyday < every
    assert not every & rest
    assert every | rest == set(names)
    assert {name.partition("[")[0] for name in every} == {name.partition("[")[0] for name in names}


def test_cases_with_a_value_not_seen_yet_come_first() -> None:
    """Of 6 x 8 cases the first 13 (a case brings at least one new value) have every value."""
    names = [f"{A}[{one}-{two}]" for one in "abcdef" for two in range(8)]
    order = spread(names)
    values = [set(name.partition("[")[2].rstrip("]").split("-")) for name in order]
    assert len(set.union(*values[:13])) == 14
    assert sorted(order) == sorted(names)


def test_which_cases_are_taken_does_not_depend_on_the_order_of_files() -> None:
    names = cases_of(A, 50)
    table = {A: [1.0, 50]}
    assert chosen(names, [], "all", table) == chosen(names[::-1], [], "all", table)
    assert math.isinf(EVERYDAY.clusters_s)
