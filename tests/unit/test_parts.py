"""The two parts of the tests: together all of them, each once."""

from parts import LONG_S, WHOLE_S, everyday


def chosen(function: str, cases: int, case_s: float, *, marked: bool = False) -> list[bool]:
    return everyday([function] * cases, [marked] * cases, {function: [case_s, cases]})


def test_a_function_that_takes_little_runs_whole() -> None:
    assert all(chosen("unit/test_a.py::test_b", 10, WHOLE_S / 10))


def test_one_that_is_not_listed_runs_whole() -> None:
    assert all(everyday(["unit/test_a.py::test_b"] * 99, [False] * 99, {}))


def test_of_one_that_takes_long_some_cases_run_evenly() -> None:
    assert chosen("unit/test_a.py::test_b", 8, WHOLE_S / 2) == [True, False, False, False] * 2


def test_at_least_one_case_runs() -> None:
    assert chosen("unit/test_a.py::test_b", 3, LONG_S) == [True, False, False]


def test_one_whose_case_takes_longer_is_the_rest() -> None:
    assert not any(chosen("unit/test_a.py::test_b", 3, LONG_S + 0.1))
    assert all(chosen("unit/test_a.py::test_b", 3, LONG_S + 0.1, marked=True))


def test_of_files_that_start_clusters_the_named_ones_run() -> None:
    assert all(everyday(["e2e/test_page.py::test_a"] * 3, [False] * 3, {}))
    assert not any(everyday(["e2e/test_readme.py::test_a"] * 3, [False] * 3, {}))


def test_cases_of_two_functions_are_counted_by_themselves() -> None:
    a, b = "unit/test_a.py::test_a", "unit/test_a.py::test_b"
    assert everyday([a, b, a, b], [False] * 4, {a: [WHOLE_S, 2]}) == [True, True, False, True]
