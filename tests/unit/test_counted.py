"""Loops that end after so many turns are refused: a worker's turns are those of its slices."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_body_checks import job, rows
from torch import nn
from torch.nn import functional as F

from ringleader import Session
from ringleader.errors import StepMisuse
from ringleader.train.local import run_local

Loop = Callable[[Session], Iterator[Any]]
COUNTED: dict[str, Loop] = {
    "islice": lambda session: itertools.islice(session.batches(rows()), 4),
    "zip": lambda session: (batch for _, batch in zip(range(4), session.batches(rows()), strict=False)),
}
WHOLE: dict[str, Loop] = {
    "itself": lambda session: session.batches(rows()),
    "mapped": lambda session: map(tuple, session.batches(rows())),
}


def program(loop: Loop) -> Callable[[Session], None]:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in loop(session):
            session.step(F.cross_entropy(net(x), y))

    return train


@pytest.mark.parametrize("name", COUNTED)
def test_a_loop_that_counts_slices_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse) as refused:
        run_local(job("ring"), program(COUNTED[name]), tmp_path)
    assert f"{name}(…) goes over session.batches (test_counted.py:" in refused.value.message
    assert "session.global_step" in (refused.value.hint or "")


@pytest.mark.parametrize("name", WHOLE)
def test_a_loop_over_all_batches_is_not(name: str, tmp_path: Path) -> None:
    finished, _ = run_local(job("ring"), program(WHOLE[name]), tmp_path)
    assert finished.steps == 3
