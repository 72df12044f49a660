"""Optimizers' own attributes around the replicas of a round: each starts from the same ones, or they are named; and of
what they leave only that is averaged which is the same one's."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.comm.objects import packed, unpacked
from ringleader.comm.seal import Seal
from ringleader.exchange import Exchange
from ringleader.train.modes.local_sgd.round_attributes import LEFT_TYPES, RoundAttributes
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
    """Ends its first phase, with the optimizer that it had for it."""

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


class Alone:
    """The exchange of a member that has all replicas."""

    communicator = None

    def all_reduce(self, table: Tensor) -> Tensor:
        return table


def round_of(*replicas: Callable[[Any, Sequence[nn.Parameter]], None]) -> tuple[Any, list[nn.Parameter]]:
    """What a round leaves whose replicas set these attributes."""
    held, optimizer = held_by(Bare)
    weights = list(held.models[0].parameters())
    attributes = RoundAttributes(held, len(replicas))
    attributes.begin()
    kept = held.attributes.kept_now(optimizer)
    for shard, replica in enumerate(replicas):
        replica(optimizer, weights)
        attributes.bring(shard, attributes.left(1 / len(replicas)))
        held.attributes.put_back(optimizer, kept)
    attributes.agree(cast(Exchange, Alone()), 1.0)
    attributes.commit()
    return optimizer, weights


ONES, THREES = (lambda: torch.full((2,), 1.0)), (lambda: torch.full((2,), 3.0))


def test_tensors_at_the_same_keys_are_averaged_in_any_order() -> None:
    def forwards(optimizer: Any, weights: Sequence[nn.Parameter]) -> None:
        optimizer.sums = {weights[0]: ONES(), "b": THREES()}

    def backwards(optimizer: Any, weights: Sequence[nn.Parameter]) -> None:
        optimizer.sums = {"b": THREES(), weights[0]: ONES()}

    optimizer, weights = round_of(forwards, backwards)
    assert torch.equal(optimizer.sums[weights[0]], ONES())
    assert torch.equal(optimizer.sums["b"], THREES())


def of_another_parameter(optimizer: Any, weights: Sequence[nn.Parameter], number: int, value: Tensor) -> None:
    optimizer.sums = {weights[number]: value}


def at_another_key(optimizer: Any, weights: Sequence[nn.Parameter], number: int, value: Tensor) -> None:
    optimizer.sums = {("layer", number): value}


def at_another_place(optimizer: Any, weights: Sequence[nn.Parameter], number: int, value: Tensor) -> None:
    optimizer.sums = [None] * number + [value] + [None] * (1 - number)


def beside_another_parameter(
    optimizer: Any, weights: Sequence[nn.Parameter], number: int, value: Tensor
) -> None:
    optimizer.sums = [(weights[number], value)]


def by_a_list_of_parameters(
    optimizer: Any, weights: Sequence[nn.Parameter], number: int, value: Tensor
) -> None:
    optimizer.seen, optimizer.sums = [weights[number]], [value]


def by_a_table_of_places(optimizer: Any, weights: Sequence[nn.Parameter], number: int, value: Tensor) -> None:
    optimizer.places, optimizer.sums = {weights[number]: 0}, [value]


def in_another_attribute(optimizer: Any, weights: Sequence[nn.Parameter], number: int, value: Tensor) -> None:
    setattr(optimizer, f"sum{number}", value)


@pytest.mark.parametrize(
    "sets",
    [
        of_another_parameter,
        at_another_key,
        at_another_place,
        beside_another_parameter,
        by_a_list_of_parameters,
        by_a_table_of_places,
        in_another_attribute,
    ],
    ids=lambda each: each.__name__,
)
def test_tensors_of_the_same_shape_that_are_anothers_are_not_averaged_with_these(sets: Any) -> None:
    def leaves(number: int) -> tuple[Any, Any]:
        optimizer, weights = round_of(
            lambda optimizer, weights: sets(optimizer, weights, number, ONES()),
            lambda optimizer, weights: sets(optimizer, weights, 1 - number, THREES()),
        )
        expected, _ = held_by(Bare)
        wanted = expected.optimizers[0][0]
        sets(wanted, weights, number, ONES())
        return vars(optimizer), vars(wanted)

    for left, wanted in map(leaves, range(2)):
        names = [name for name in wanted if name.startswith(("sum", "seen", "places"))]
        assert names == [name for name in left if name.startswith(("sum", "seen", "places"))]
        assert [repr(left[name]) for name in names] == [repr(wanted[name]) for name in names]


def test_what_the_first_replica_has_deleted_is_deleted() -> None:
    held, optimizer = held_by(Switching)
    kept = held.attributes.kept_now(optimizer)
    attributes = RoundAttributes(held, 2)
    for shard in range(2):
        assert optimizer.first == 1.0
        if shard == 0:
            optimizer.step()
        attributes.bring(shard, attributes.left(0.5))
        held.attributes.put_back(optimizer, kept)
    attributes.agree(cast(Exchange, Alone()), 1.0)
    attributes.commit()
    assert not hasattr(optimizer, "first")


@pytest.mark.parametrize("constant", [torch.device("cpu"), torch.float16, torch.Size([2]), 1j, None], ids=str)
def test_what_is_told_of_constants_is_understood(constant: Any) -> None:
    seal = Seal(b"secret" * 6, "round")
    assert unpacked(packed({("a",): constant}, seal), seal, *LEFT_TYPES) == {("a",): constant}
