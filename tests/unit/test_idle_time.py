"""What workers wait for one another is told by step, and apart from the exchange, whichever of them is late."""

import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest
import torch
from leasing import ASYNC, BATCH, Nets, job, name_of
from threaded_cast import ThreadedCast
from torch import nn
from torch.utils.data import TensorDataset

from ringleader import Session
from ringleader.train.generation.control_word import StepPace
from ringleader.train.modes.step_checks import waits_of

ROWS = 10 * BATCH
LATE_S = 0.04
NEVER = threading.Event()
MODES: list[dict[str, Any]] = [
    {"intra_node": "ring", "inter_node": "ring"},
    {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2},
    {"servers": 1},
]


class Late(Nets):
    """One worker computes longer than the others; none unless it is said which."""

    is_late: Callable[[str], bool] = staticmethod(lambda _: False)

    def __call__(self, session: Session) -> None:
        net = session.model(nn.Linear(1, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.0))
        begun = 0.0
        for (x,) in session.batches(TensorDataset(torch.ones(ROWS, 1))):
            if self.is_late(threading.current_thread().name):
                # Three times as long as all else in a step takes, however busy this machine is.
                late_s = max(LATE_S, 3 * (perf_counter() - begun)) if begun else LATE_S
                # Without the interpreter's lock, which the other one computes with meanwhile.
                NEVER.wait(late_s)
                begun = perf_counter()
            session.step(net(x).mean())


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mode", MODES, ids=name_of)
def test_waits_for_a_late_worker_are_idle_time_whoever_reports(
    mode: dict[str, Any], rank: int, tmp_path: Path
) -> None:
    spec = job(mode, workers={"min": 2, "max": 2}, batch={"global_size": BATCH, "logical_shards": 2})
    stage = ThreadedCast(spec, train := Late(), artifacts=tmp_path)
    train.is_late = lambda worker: stage.formed[0].members.index(worker) == rank
    told = [values for _, values in stage.play().values]
    assert len(told) == ROWS // BATCH
    behind = 2 if "inner_steps" in mode else 1
    # Those of the newest commit are known with the next one.
    assert ["idle_fraction" in values for values in told] == [True] * (len(told) - behind) + [False] * behind
    shares = [(values["idle_fraction"], values["exchange_fraction"]) for values in told[:-behind]]
    assert all(0 <= idle <= 0.5 and 0 <= exchange <= 1 and idle + exchange <= 1 for idle, exchange in shares)
    # Of two workers one waits for nearly all of a step; this machine may do much else in some.
    assert median(idle for idle, _ in shares[2:]) > 0.25


def test_who_is_alone_and_who_leases_items_waits_for_nobody(tmp_path: Path) -> None:
    for mode, workers in ((MODES[0], 1), (ASYNC, 2)):
        spec = job(mode, workers={"min": workers, "max": workers})
        play = ThreadedCast(spec, Late(), artifacts=tmp_path / str(workers)).play()
        assert not any("idle_fraction" in values for _, values in play.values)


def test_the_exchange_is_what_the_worker_waits_that_waits_least() -> None:
    assert waits_of([StepPace(2.0, 1.0), StepPace(1.0, 0.25), StepPace()]) == {
        "exchange_fraction": 0.25,
        "idle_fraction": 0.125,
    }
    assert waits_of([StepPace(1.0, 0.5), StepPace()]) == {}
