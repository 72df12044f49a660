"""Mixes: which row of which data set stands at a position."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import ringleader
from ringleader.data import Mix
from ringleader.errors import DatasetUnsupported
from ringleader.train.local import run_local


class Rows:
    """Rows (name, number), which counts how often it is asked."""

    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows, self.asked = name, rows, 0

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[str, int]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[tuple[str, int]]:
        self.asked += 1
        assert all(0 <= row < self.rows for row in rows)
        return [(self.name, row) for row in rows]


def test_any_thousand_positions_have_the_shares_exactly() -> None:
    mix = Mix({"a": (Rows("a", 7000), 0.7), "b": (Rows("b", 40), 0.25), "c": (Rows("c", 3), 0.05)})
    assert mix.shares == {"a": 700, "b": 250, "c": 50}
    names = [name for name, _ in mix.__getitems__(range(len(mix)))]
    for first in (0, 1, 499, 1777, len(mix) - 1000):
        assert Counter(names[first : first + 1000]) == {"a": 700, "b": 250, "c": 50}
    spread = np.cumsum([name == "a" for name in names]) - 0.7 * np.arange(1, len(names) + 1)
    assert abs(spread).max() < 1


def test_the_rows_of_each_data_set_come_in_order_and_begin_anew() -> None:
    mix = Mix({"long": (Rows("long", 5000), 3), "short": (Rows("short", 7), 1)})
    found = mix.__getitems__(range(len(mix)))
    for name, rows in (("long", 5000), ("short", 7)):
        own = [row for which, row in found if which == name]
        assert own == [n % rows for n in range(len(own))]
        assert len(own) >= rows


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3000), st.floats(0.05, 10)), min_size=1, max_size=4))
def test_its_length_is_the_least_with_every_row(parts: list[tuple[int, float]]) -> None:
    mix = Mix({str(n): (Rows(str(n), rows), weight) for n, (rows, weight) in enumerate(parts)})
    counts = Counter(mix.__getitems__(range(len(mix))))
    assert len(counts) == sum(rows for rows, _ in parts)
    # Without its last position a row would be missing.
    assert counts[mix[len(mix) - 1]] == 1
    assert sum(mix.shares.values()) == 1000


def test_any_position_is_found_alone_and_each_data_set_is_asked_once() -> None:
    a, b = Rows("a", 10**12), Rows("b", 10)
    mix = Mix({"a": (a, 0.5), "b": (b, 0.5)})
    assert len(mix) > 10**12
    positions = [10**12 + 3, 5, -1, 10**12 + 3]
    found = mix.__getitems__(positions)
    assert (a.asked, b.asked) in {(1, 1), (1, 0)}
    assert found == [mix[p] for p in positions]
    assert found[2] == mix.place(len(mix) - 1)
    with pytest.raises(IndexError, match=f"row {len(mix)} of a mix with {len(mix)} rows"):
        mix[len(mix)]


def test_shares_that_are_no_thousandths_are_rounded_and_still_add_up() -> None:
    assert Mix({n: (Rows(n, 5), 1) for n in "abc"}).shares == {"a": 334, "b": 333, "c": 333}
    assert Mix({"a": (Rows("a", 5), 0.7), "b": (Rows("b", 5), 0.3)}).shares == {"a": 700, "b": 300}


def test_what_cannot_be_mixed_is_refused_by_name() -> None:
    rows = Rows("a", 5)
    for weight in (0, -1, float("nan"), float("inf"), "0.5", None):
        with pytest.raises(ValueError, match="the weight of 'a' in a mix"):
            Mix({"a": (rows, weight)})
    with pytest.raises(ValueError, match="'b' has less than a thousandth"):
        Mix({"a": (rows, 1), "b": (rows, 0.0001)})
    with pytest.raises(ValueError, match="at least one"):
        Mix({})
    for parts in ([rows], {"a": 0.7}, {"a": rows}, {"a": TensorDataset(torch.ones(2))}, {"a": (rows, 1, 2)}):
        with pytest.raises(TypeError, match=r"by name: Mix\(\{'a': \(dataset_a, 0.7\)"):
            Mix(parts)  # type: ignore[arg-type]
    with pytest.raises(DatasetUnsupported, match="'a' of a mix has no rows"):
        Mix({"a": (Rows("a", 0), 1)})
    with pytest.raises(DatasetUnsupported, match="'a' of a mix is list_iterator"):
        Mix({"a": (iter([1]), 1)})


def test_a_data_set_without_getitems_is_asked_row_by_row() -> None:
    mix = Mix({"a": (TensorDataset(torch.arange(3)), 1), "b": (TensorDataset(torch.arange(10, 13)), 1)})
    assert sorted(int(x) for (x,) in mix.__getitems__(range(len(mix)))) == [0, 1, 2, 10, 11, 12]


@pytest.mark.usefixtures("elsewhere")
def test_a_job_trains_on_every_position_once_in_the_shares(tmp_path: Path) -> None:
    spec = {"name": "mix", "entrypoint": "mix:train", "workers": {"max": 3}, "batch": {"global_size": 100}}
    parts = {"a": (TensorDataset(torch.ones(1400, 2)), 0.7), "b": (TensorDataset(torch.zeros(600, 2)), 0.3)}
    mix = Mix(parts)

    def train(session: ringleader.Session) -> None:
        net = session.model(torch.nn.Linear(2, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for shuffle in (True, False):
            for (x,) in session.batches(mix, shuffle=shuffle):
                session.step(net(x).square().mean(), ones=x.mean())

    finished, sink = run_local(spec | {"debug": {"ledger": True}}, train, tmp_path)
    assert (finished.samples, len(mix)) == (2 * 2000, 2000)
    for first in (1, 21):
        taken = np.concatenate([sink.rows[step][1] for step in range(first, first + 20)])
        assert sorted(taken.tolist()) == list(range(2000))
    # Unshuffled, ten batches of a hundred have the shares.
    shares = [
        sum(sink.values[step]["ones"] for step in range(first, first + 10)) / 10 for first in (21, 25, 31)
    ]
    assert shares == pytest.approx([0.7] * 3, abs=1e-6)  # means of float32
