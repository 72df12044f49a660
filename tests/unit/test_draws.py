"""What updates draw: the same whoever makes them; where each of several servers draws for its part, it is said."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from faults import FaultPlan
from test_own_state import DRAWS, network, rows, spec
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.generation.context import MemberContext
from ringleader.train.local import run_local
from ringleader.train.modes.registry import mode_of
from ringleader.train.state.training_state import TrainingState
from ringleader.train.state.update_randomness import IN_PARTS, UpdateRandomness

SERVERS = {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2}


class Noisy(torch.optim.SGD):
    """Adds noise to each gradient, as Langevin dynamics do, from a generator in an attribute or an option."""

    def __init__(self, parameters: Any, kind: str, *, optional: bool = False) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        make, self._draw = DRAWS[kind]
        self.own = None if optional else make()
        for group in self.param_groups if optional else ():
            group["own"] = make()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad += 0.1 * self._draw(self.own or group["own"])
        super().step(closure)


def noisily(kind: str, *, optional: bool = False) -> Callable[[Session], None]:
    def train(session: Session) -> None:
        net = session.model(network())
        session.optimizer(Noisy(net.parameters(), kind, optional=optional))
        for _ in range(4):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))

    return train


@pytest.mark.parametrize("optional", [False, True], ids=["attribute", "option"])
@pytest.mark.parametrize("kind", DRAWS)
def test_a_joiner_s_optimizer_draws_what_the_others_draw(kind: str, optional: bool, tmp_path: Path) -> None:
    """Their generators have drawn for four steps when it comes."""
    function = noisily(kind, optional=optional)
    alone = run_local(spec(), function, tmp_path / "alone")[0]
    faults = FaultPlan().kill("w1", at_step=4).hold("w0", at_step=8, for_generation=3)
    play = ThreadedCast(spec((1, 2)), function, faults, tmp_path / "cast").play()
    assert play.outcome == "succeeded", play.message
    assert "w2" in play.finished
    assert play.digest == alone.digest
    assert {end.reproducible for end in play.finished.values()} == {True}


@pytest.mark.parametrize("sync", ["local_sgd", "parameter_server"])
def test_replicas_and_one_server_draw_what_one_process_draws(sync: str, tmp_path: Path) -> None:
    function = noisily("torch")
    alone = run_local(spec(sync=sync), function, tmp_path / "alone")[0]
    play = ThreadedCast(spec((2, 2), sync=sync), function, artifacts=tmp_path / "cast").play()
    assert play.outcome == "succeeded", play.message
    assert play.digest == alone.digest
    assert {end.reproducible for end in play.finished.values()} == {True}


def watched(in_part: bool, **sync: Any) -> UpdateRandomness:
    model = nn.Linear(2, 1)
    held = SimpleNamespace(optimizers=[(Noisy(model.parameters(), "torch"), None)])
    exchange = SimpleNamespace(part=[model.weight] if in_part else [model.weight, model.bias])
    parameters = list(model.parameters())
    job = spec(sync=SERVERS | sync)
    generation = SimpleNamespace(exchange=exchange)
    context = SimpleNamespace(
        spec=job,
        rules=mode_of(job.sync).rules(job.sync),
        same_bits=job.sync.same_bits,
        held=held,
        current=generation,
        parameters=parameters,
    )
    return UpdateRandomness(cast(MemberContext, context))


HOW: dict[str, Callable[[UpdateRandomness], Any]] = {
    "torch": lambda _: torch.rand(()),
    "numpy": lambda _: np.random.rand(),
    "python": lambda _: random.random(),
    "its own": lambda draws: torch.rand((), generator=draws._own[0][1]),
}


@pytest.mark.parametrize("how", HOW)
def test_draws_count_where_others_update_other_parts(how: str) -> None:
    draws, whole = watched(in_part=True), watched(in_part=False)
    unclaimed = watched(in_part=True, consistency="ssp", staleness=1)
    for one in (draws, whole, unclaimed):
        with one.watched():
            pass
        assert one.why_other_bits == ""
        with one.watched():
            HOW[how](one)
    assert [one.why_other_bits for one in (draws, whole, unclaimed)] == [IN_PARTS, "", ""]
    healed = watched(in_part=True)
    healed.restore(draws.state())
    healed.restore(whole.state())
    assert healed.why_other_bits == IN_PARTS


def test_what_callbacks_draw_does_not_depend_on_what_was_drawn_before() -> None:
    drawn: list[float] = []
    held = TrainingState()
    held.callbacks.append(
        lambda: drawn.append(float(torch.rand(())) + random.random() + float(np.random.rand()))
    )
    for before, step in ((0, 3), (5, 3), (0, 4)):
        torch.rand(before), np.random.rand(before), [random.random() for _ in range(before)]
        held.after_update(0, step)
    assert drawn[0] == drawn[1] != drawn[2]
