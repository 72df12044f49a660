"""The share of the best schedule's speed: which one is best, and how turns are compared."""

from ringleader.bench.exchange.choice import CASES, LEAST, POINTS, ChoicePoint, best, figure_of, shares
from ringleader.bench.registry import Wish


def test_what_is_best_in_one_half_of_the_turns_is_compared_in_the_other():
    took = {"ring": [4.0, 2.0, 4.0, 2.0], "tree": [2.0, 9.0, 2.0, 9.0]}
    assert shares(took, "ring") == (["tree", "ring"], [1.0, 4.5, 1.0, 4.5])
    assert shares(took, "tree") == (["tree", "ring"], [2.0, 1.0, 2.0, 1.0])


def test_noise_alone_makes_nobody_better_than_the_chosen_one():
    """Each way is soonest in turn, by luck: the least of their medians would be told to be twice as fast."""
    took = {"ring": [2.0, 2.0, 2.0, 2.0], "tree": [1.0, 3.0, 1.0, 3.0], "direct": [3.0, 1.0, 3.0, 1.0]}
    assert shares(took, "ring") == (["tree", "direct"], [1.5, 1.5, 1.5, 1.5])


def test_the_chosen_one_is_best_among_equals():
    assert best({"direct": [1.0, 1.0], "ring": [1.0, 1.0]}, "ring", 0) == "ring"


def test_where_bits_may_not_change_the_choice_is_judged_among_the_canonical_ones():
    took = {"ring": [1.0] * 4, "direct": [2.0] * 4, "tree": [4.0] * 4}
    found = {"took": took, "chosen": "ring", "chosen_same_bits": "tree", "canonical": ["direct", "tree"]}
    free, bound = (figure_of(ChoicePoint("gloo", "1KB", 3, same_bits), found) for same_bits in (False, True))
    assert free.ours == [1.0] * 4
    assert bound.ours == [0.5] * 4


def test_both_choices_are_judged_at_every_size_in_every_world():
    over_sockets = [point for point in POINTS if point.over == "gloo"]
    sizes = {(point.size, point.world) for point in over_sockets}
    assert {(p.size, p.world, p.same_bits) for p in over_sockets} == {
        (*at, s) for at in sizes for s in (False, True)
    }
    assert "auto-same-bits-1KB-3ranks" in CASES


def test_auto_means_all_points_and_the_least_of_them():
    assert [case for case in CASES if Wish(("auto",)).wants(case)] == list(CASES)
    assert CASES[-1] == LEAST
