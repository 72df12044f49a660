"""Objects may be registered between loops where all members are at the same step; elsewhere only at the top."""

import copy
import gc
import weakref
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_leaving import RING, ROUNDS, job, made, rows
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.errors import StepMisuse
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.state.optimizers.served_state import ServedOptimizerStates
from ringleader.train.state.optimizers.state_loading import load
from ringleader.train.state.training_state import TrainingState


def loop(session: Session, net: Any) -> None:
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))


def late(session: Session) -> None:
    net = made(session)
    loop(session, net)
    session.optimizer(torch.optim.Adam(net.parameters(), lr=0.01))
    loop(session, net)


def some(session: Session) -> None:
    """An optimizer for half of another one's parameters."""
    net = made(session)
    loop(session, net)
    session.optimizer(torch.optim.Adam(net[2].parameters(), lr=0.01))


def in_a_body(session: Session) -> None:
    net = made(session)
    for x, y in session.batches(rows()):
        session.keep("late", torch.optim.Adam(net.parameters()))
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("sync", [RING, ROUNDS], ids=["ring", "local_sgd"])
def test_an_optimizer_takes_the_place_of_one_with_its_parameters(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    finished, _ = run_local(job(sync), late, tmp_path)
    assert finished.steps == 12


def overlapping(session: Session) -> None:
    """One for all parameters of an earlier one, and for some of a later one."""
    net = session.model(nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)))
    session.optimizer(torch.optim.SGD(net[0].parameters(), lr=0.01))
    session.optimizer(torch.optim.SGD(net[1].parameters(), lr=0.01))
    loop(session, net)
    session.optimizer(torch.optim.SGD([*net[0].parameters(), net[1].bias], lr=0.01))


def test_one_optimizer_takes_the_place_of_several_and_each_weight_is_updated_once(tmp_path: Path) -> None:
    finals: list[list[Tensor]] = []

    def train(session: Session, parts: list[slice]) -> None:
        torch.manual_seed(5)
        net = session.model(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))
        for part in parts:
            session.optimizer(torch.optim.SGD(net[part].parameters(), lr=0.1, momentum=0.9))
        loop(session, net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
        loop(session, net)
        finals.append([parameter.detach().clone() for parameter in net.parameters()])

    for parts in ([slice(3)], [slice(2, 3), slice(2)]):
        run_local(job(RING), partial(train, parts=parts), tmp_path)
    for together, divided in zip(*finals, strict=True):
        assert torch.equal(together, divided)


class Wrapper(torch.optim.Optimizer):
    """As the usual Lookahead is: without torch's own `__init__`, and with hooks for `step` alone."""

    def __init__(self, wrapped: torch.optim.Optimizer) -> None:
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self.wrapped, self.defaults = wrapped, wrapped.defaults
        self.param_groups, self.state = wrapped.param_groups, wrapped.state

    def step(self, closure: Any = None) -> Any:
        return self.wrapped.step(closure)


def test_an_optimizer_without_hooks_for_its_state_may_be_registered(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 3))
        session.optimizer(Wrapper(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)))
        loop(session, net)
        loop(session, net)

    finished, _ = run_local(job(RING), train, tmp_path)
    assert finished.steps == 12


class SavingWrapper(Wrapper):
    """Saves and loads by the one that it wraps, as the usual Lookahead does."""

    def state_dict(self) -> dict[str, Any]:
        return self.wrapped.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.wrapped.load_state_dict(state)
        self.param_groups = self.wrapped.param_groups


def test_an_optimizer_around_another_one_shares_groups_and_state_with_it_behind_a_load() -> None:
    net = nn.Linear(5, 3)
    optimizer = SavingWrapper(torch.optim.Adam(net.parameters(), lr=0.1))
    net(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.step()
    saved["param_groups"][0]["lr"] = 0.2
    load(optimizer, saved)
    assert optimizer.param_groups[0] is optimizer.wrapped.param_groups[0]
    assert (optimizer.state is optimizer.wrapped.state, optimizer.param_groups[0]["lr"]) == (True, 0.2)
    assert [state["step"].item() for state in optimizer.state.values()] == [1.0, 1.0]


def test_an_optimizer_without_hooks_is_refused_on_servers_with_what_to_do() -> None:
    optimizer = Wrapper(torch.optim.SGD(nn.Linear(5, 3).parameters(), lr=0.1))
    with pytest.raises(StepMisuse, match=r"Wrapper never calls torch.optim.Optimizer.__init__"):
        ServedOptimizerStates(TrainingState(), on=True).add(optimizer)


def test_optimizers_that_were_replaced_go_with_their_states() -> None:
    held, net = TrainingState(), nn.Linear(5, 3)
    for _ in range(3):
        held.add_optimizer(torch.optim.SGD(net.parameters(), lr=0.1), None)
    gc.collect()
    assert list(held.replaced) == []


def test_optimizers_that_have_stepped_and_were_replaced_go_too(tmp_path: Path) -> None:
    made_anew: list[weakref.ref[Any]] = []

    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 3))
        for _ in range(4):
            made_anew.append(weakref.ref(session.optimizer(torch.optim.Adam(net.parameters(), lr=0.01))))
            loop(session, net)
        gc.collect()
        # The newest, and the one of the loop before.
        assert [each() is not None for each in made_anew[:2]] == [False, False]

    run_local(job(RING), train, tmp_path)


@pytest.mark.parametrize(
    ("sync", "function", "said"),
    [
        ({"intra_node": "token_ring"}, late, "after the first batches or evaluate call"),
        (RING, some, "registered for some, but not all, parameters of an earlier one"),
        (RING, overlapping, "registered for some, but not all, parameters of an earlier one"),
        (RING, in_a_body, "inside a loop"),
    ],
)
def test_what_cannot_be_registered_is_refused_with_what_to_do(
    sync: dict[str, Any], function: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(StepMisuse, match=said):
        run_local(job(sync), function, tmp_path)
