"""The share of the best schedule's speed: which one is best, and how turns are compared."""

from ringleader.bench.choice import CASES, LEAST, shares
from ringleader.bench.registry import Wish


def test_the_best_is_the_one_with_the_least_median_and_turns_are_compared_one_by_one():
    took = {"ring": [4.0, 2.0, 4.0], "tree": [2.0, 1.0, 90.0]}
    assert shares(took, "ring") == ("tree", [0.5, 0.5, 22.5])
    assert shares(took, "tree") == ("tree", [1.0, 1.0, 1.0])


def test_the_chosen_one_is_best_among_equals():
    assert shares({"direct": [1.0], "ring": [1.0]}, "ring")[0] == "ring"


def test_auto_means_all_points_and_the_least_of_them():
    assert [case for case in CASES if Wish(("auto",)).wants(case)] == list(CASES)
    assert CASES[-1] == LEAST
