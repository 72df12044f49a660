"""Servers that have committed a step, and whose weights did not reach all workers: the commit loses nothing.

A worker dies as it begins to take the weights of a step; the servers notice that behind their commit, as they publish.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_leaving import COPIES, SERVER, SERVERS, job, made, rows, worker
from threaded_cast import Shot, ThreadedCast
from torch import nn
from torch.nn import functional as F

from ringleader.comm.schedules.schedule import RESULTS
from ringleader.exchange.side_channel import BUCKETS
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
BACKED = SERVERS | {"server_backups": 1}
SOURCES = {
    "server": (SERVER, 0, 0),
    "servers": (SERVERS, 0, 1),
    "servers, the other": (SERVERS, 1, 0),
    "backed": (BACKED, 0, 1),
    "copies": (COPIES, 0, 0),
}
"""By name: the mode, the server that publishes to the first two workers, and the bucket that it publishes."""


class Heard:
    """What lines have heard, in its order. Implements Stateful."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0

    def hear(self, value: float) -> None:
        self.value, self.count = 0.5 * self.value + value, self.count + 1

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def end(net: nn.Module, *heard: Heard) -> None:
    """Have the weights depend on all that was heard."""
    with torch.no_grad():
        for each in heard:
            net[0].weight.add_(each.value + each.count)


def lines(session: Session) -> None:
    """Lines behind each step change a kept object, and the first loop is left."""
    net, data, heard = made(session, None), rows(), Heard()
    session.keep("heard", heard)
    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            heard.hear(session.global_step + session.loss)
            if session.global_step == 3:
                break
    end(net, heard)


def lines_between_phases(session: Session) -> None:
    net, data, heard = made(session, None), rows(), Heard()
    (optimizer, _), *_ = session._held.optimizers
    session.keep("heard", heard)
    for phases in session.steps(data, phases=[optimizer, optimizer]):
        for turns in phases:
            for x, y in turns:
                session.step(F.cross_entropy(net(x), y))
            heard.hear(session.global_step + net[0].weight.sum().item())
    end(net, heard)


def callbacks(session: Session) -> None:
    """An average of the weights, and a callback that hears of them."""
    net, data, heard = made(session, None), rows(), Heard()
    session.keep("heard", heard)
    average = session.ema(net, 0.8)
    session.on_commit(lambda: heard.hear(session.global_step + net[0].weight.sum().item()))
    for _ in range(2):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
    average.load_into(net)
    end(net, heard)


PROGRAMS: dict[str, Callable[[Session], None]] = {
    each.__name__: each for each in (lines, lines_between_phases, callbacks)
}


@pytest.mark.parametrize(("nth", "least"), [(2, 1), (3, 3)])
@pytest.mark.parametrize(("sync", "server", "bucket"), SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_publication_that_breaks_takes_nothing_of_the_step_back(
    program: Callable[[Session], None],
    sync: dict[str, Any],
    server: int,
    bucket: int,
    nth: int,
    least: int,
    tmp_path: Path,
) -> None:
    """Another worker that waits for it is given the state of a server; so is who comes in the lost one's place, where
    the others wait for that."""
    dies = Shot(worker(sync, 0), server, BUCKETS + 2 * bucket + RESULTS, nth, sends=False)
    shots = (dies, replace(dies, worker=worker(sync, 1), lags=True))
    spec = job(sync, workers={"min": least, "max": 3})
    cast = ThreadedCast(spec, program, artifacts=tmp_path, shots=shots)
    play = cast.play()
    alone, _ = run_local(job(sync), program, tmp_path / "alone")
    assert cast.fired.is_set()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert worker(sync, 1) in dict(play.plans[1].heals)
    assert play.reported("member.differed") == []
    assert play.digest == alone.digest
