"""Optimisers' own attributes around the replicas of a round: each starts from the same ones, or they are named."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from ringleader.comm.objects import packed, unpacked
from ringleader.comm.seal import Seal
from ringleader.train.modes.local_sgd.round_attributes import LEFT_TYPES
from ringleader.train.state.training_state import TrainingState


class Bare(Optimizer):
    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {"lr": 0.1})
        self.begin()

    def begin(self) -> None: ...


def held_by(kind: type[Bare]) -> tuple[TrainingState, Any]:
    held = TrainingState()
    held.models.append(nn.Linear(2, 1))
    held.add_optimizer(kind(held.models[0].parameters()), None)
    return held, held.optimizers[0][0]


class Aliasing(Bare):
    """The current table is one of those that were made with it."""

    def begin(self) -> None:
        self.table, self.tensor, self.new = [1.0, 0.5], torch.ones(2), True

    def step(self, closure: Any = None) -> None:
        if self.new:
            self.current, self.mean, self.new = self.table, self.tensor, False


def test_an_attribute_that_is_another_ones_list_or_tensor_stays() -> None:
    held, optimizer = held_by(Aliasing)
    optimizer.step()
    kept = held.attributes.kept_now(optimizer)
    optimizer.step()
    held.attributes.put_back(optimizer, kept)
    assert optimizer.current is optimizer.table
    assert optimizer.mean is optimizer.tensor


class Deciding(Bare):
    """A function until it is a number, and a group until it is none."""

    def begin(self) -> None:
        self.rate: Any = abs
        self.group: Any = None

    def step(self, closure: Any = None) -> None:
        self.rate, self.group, self.made = 0.5, self.param_groups[0], True


@pytest.mark.parametrize("group", [None, 0])
def test_what_could_not_be_sent_is_set_back_as_it_is(group: int | None) -> None:
    held, optimizer = held_by(Deciding)
    optimizer.group = before = None if group is None else optimizer.param_groups[group]
    kept = held.attributes.kept_now(optimizer)
    optimizer.step()
    held.attributes.put_back(optimizer, kept)
    assert optimizer.rate is abs
    assert optimizer.group is before
    assert not hasattr(optimizer, "made")


class Deleting(Bare):
    """Ends its first phase, with the optimiser that it had for it."""

    def begin(self) -> None:
        self.warm, self.table, self.call = 4.0, [1.0, 2.0], abs
        self.current = self.table
        self.inner: Any = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1)
        self.after = self.inner

    def step(self, closure: Any = None) -> None:
        self.inner.phase = 2
        self.current.append(3.0)
        del self.warm, self.table, self.call, self.inner


def test_what_a_replica_has_deleted_is_there_for_the_next_one() -> None:
    held, optimizer = held_by(Deleting)
    before = dict(vars(optimizer))
    kept = held.attributes.kept_now(optimizer)
    for _ in range(2):
        optimizer.step()
        held.attributes.put_back(optimizer, kept)
        assert {name: vars(optimizer).get(name) for name in before} == before
        assert optimizer.current is optimizer.table
        assert (optimizer.table, hasattr(optimizer.inner, "phase")) == ([1.0, 2.0], False)
        assert "state" in vars(optimizer.inner)


class Switching(Bare):
    """Made, kept for a while, deleted."""

    def begin(self) -> None:
        self.first = 1.0

    def step(self, closure: Any = None) -> None:
        if hasattr(self, "first"):
            del self.first
            self.second = [torch.ones(2)]
        else:
            self.__dict__.pop("second", None)


@pytest.mark.parametrize("mine", range(3))
@pytest.mark.parametrize("theirs", range(3))
def test_what_a_peer_has_deleted_is_deleted_here(theirs: int, mine: int) -> None:
    (donor, giving), (healed, given) = held_by(Switching), held_by(Switching)
    for optimizer, steps in ((giving, theirs), (given, mine)):
        for _ in range(steps):
            optimizer.step()
    healed.attributes.put(given, donor.attributes.sent(giving))
    assert [hasattr(given, name) for name in ("first", "second")] == [theirs == 0, theirs == 1]


class Functional(Bare):
    """Cannot travel."""

    def step(self, closure: Any = None) -> None:
        self.update = abs


def test_a_peer_that_can_send_nothing_deletes_nothing_here() -> None:
    (donor, giving), (healed, given) = held_by(Functional), held_by(Functional)
    giving.step()
    given.label = "set beside"
    healed.attributes.put(given, donor.attributes.sent(giving))
    assert given.label == "set beside"


@pytest.mark.parametrize("constant", [torch.device("cpu"), torch.float16, torch.Size([2]), 1j, None], ids=str)
def test_what_is_told_of_constants_is_understood(constant: Any) -> None:
    seal = Seal(b"secret" * 6, "round")
    assert unpacked(packed({("a",): constant}, seal), seal, *LEFT_TYPES) == {("a",): constant}
