"""The printed line: its shape is a contract, its ratio always speaks for Ringleader when it is above one."""

import json

import pytest

from ringleader.bench.line import Figure, Target

KEYS = [
    "bench", "case", "ringleader", "peer", "peer_name", "unit",
    "ratio", "target", "met", "runs", "machine", "command",
]  # fmt: skip


def line(figure: Figure) -> dict[str, object]:
    written = figure.line(bench="step", machine="m", command="c").as_json()
    read: dict[str, object] = json.loads(written)
    return read


def test_a_line_has_exactly_the_agreed_keys() -> None:
    assert list(line(Figure("mlp", "s", "lower", [1.0], [2.0], "ddp"))) == KEYS


def test_a_ratio_above_one_means_that_ringleader_is_better_whatever_the_unit() -> None:
    assert line(Figure("a", "s", "lower", [1.0], [2.0], "ddp"))["ratio"] == 2
    assert line(Figure("b", "rows/s", "higher", [300.0], [100.0], "ddp"))["ratio"] == 3


def test_medians_are_compared_not_means() -> None:
    made = line(Figure("a", "s", "lower", [1.0, 1.0, 90.0], [2.0, 2.0, 0.0], "ddp"))
    assert (made["ringleader"], made["peer"], made["ratio"], made["runs"]) == (1, 2, 2, 3)


def test_without_a_peer_everything_about_it_is_null() -> None:
    made = line(Figure("a", "s", "lower", [1.0]))
    assert (made["peer"], made["peer_name"], made["ratio"], made["target"], made["met"]) == (None,) * 5


@pytest.mark.parametrize(
    ("target", "ours", "met"),
    [
        (Target("ratio", ">=", 0.97), 2.0, True),
        (Target("ratio", ">=", 0.97), 2.1, False),
        (Target("ringleader", "<=", 0.25), 0.25, True),
        (Target("ringleader", "<=", 0.25), 0.26, False),
    ],
)
def test_a_target_is_met_or_missed(target: Target, ours: float, met: bool) -> None:
    made = line(Figure("a", "s", "lower", [ours], [2.0], "ddp", target=target))
    assert (made["target"], made["met"]) == (str(target), met)


def test_a_target_on_a_ratio_says_nothing_without_a_peer() -> None:
    assert line(Figure("a", "s", "lower", [1.0], target=Target("ratio", ">=", 1)))["met"] is None
