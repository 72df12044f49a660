"""`data.skip`: named steps are left out, and all others have the rows that they would have had."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import ringleader
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.train.local import run_local
from ringleader.train.rows.order.skipped_steps import KeptSteps, StepNumbers

RANGES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1])), max_size=6
)


@given(steps=st.integers(0, 30), before=st.integers(0, 20), skip=RANGES)
def test_what_is_kept_is_what_no_range_names(steps: int, before: int, skip: list[tuple[int, int]]) -> None:
    kept = KeptSteps(steps, before, skip)
    left_out = {step for first, last in skip for step in range(first, last + 1)}
    expected = [n for n in range(steps) if before + n + 1 not in left_out]
    assert [kept.place(offset) for offset in range(len(kept))] == expected


@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    left=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    skip=RANGES,
)
def test_numbers_go_on_over_loops_that_are_left_early(
    lengths: list[int], left: list[int], skip: list[tuple[int, int]]
) -> None:
    numbers, ended, number = StepNumbers(skip), [0], 0
    left_out = {step for first, last in skip for step in range(first, last + 1)}
    for call, (steps, most) in enumerate(zip(lengths, left, strict=False)):
        # An evaluation before each loop.
        kept = numbers.begin(2 * call + 1, steps, ended)
        mine = [n for n in range(number, number + steps) if n + 1 not in left_out]
        assert [number + kept.place(offset) for offset in range(len(kept))] == mine
        committed = min(most, len(mine))
        whole = committed == len(mine)
        number = number + steps if whole else mine[committed - 1] + 1 if committed else number
        ended += [ended[-1] + committed] * 2


ROWS, SPEC = (
    26,
    {"name": "unit", "entrypoint": "unit:train", "workers": {"max": 2}, "batch": {"global_size": 4}},
)


def play(tmp_path: Path, data: dict[str, Any], **keys: Any) -> tuple[Any, Any, int]:
    dataset = TensorDataset(torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)))
    told = []

    def train(session: ringleader.Session) -> None:
        net = session.model(torch.nn.Linear(3, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        told.append(session.total_steps(dataset, epochs=3))
        for _ in range(3):
            for (x,) in session.batches(dataset):
                session.step(net(x).square().mean())
            session.evaluate(dataset, lambda batch: {"loss": net(batch[0]).square().flatten()})

    finished, sink = run_local(SPEC | {"data": data, "debug": {"ledger": True}} | keys, train, tmp_path)
    return finished, sink, told[0]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("order", ["shuffled", "row"])
@pytest.mark.parametrize("skip", [[[3, 3]], [[1, 2], [6, 9], [7, 8]], [[8, 14]], [[7, 7], [21, 100]]])
def test_the_ledger_is_that_of_a_job_without_the_steps_that_are_left_out(
    order: str, skip: list[list[int]], tmp_path: Path
) -> None:
    _, whole, count = play(tmp_path, {"order": order})
    finished, sink, told = play(tmp_path, {"order": order, "skip": skip})
    kept = [step for step in range(1, count + 1) if not any(first <= step <= last for first, last in skip)]
    assert (count, told, finished.steps) == (21, len(kept), len(kept))
    assert [sink.rows[n][1].tolist() for n in range(1, len(kept) + 1)] == [
        whole.rows[n][1].tolist() for n in kept
    ]


@pytest.mark.parametrize("skip", [[[3, 2]], [[0, 2]], [[1]], [[1, 2, 3]], [1, 2], "1-2", [[1, True]]])
def test_ranges_that_are_none_are_refused_by_their_key(skip: Any) -> None:
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.parse(SPEC | {"data": {"skip": skip}})
    assert caught.value.errors[0]["pointer"].startswith("/data/skip")
