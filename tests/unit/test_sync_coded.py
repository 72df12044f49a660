"""Coded gradients over threads: equal on all members, nothing counted twice or forgotten."""

from collections.abc import Callable, Sequence

import pytest
import torch
from exchange_members import Member, on_members, plan_of, transports
from torch import Tensor, nn

from ringleader.comm.codecs import CODECS, NAMES, POWERSGD
from ringleader.comm.transports.inprocess import InProcessTransport
from ringleader.errors import ExchangeBroken
from ringleader.exchange import Coding
from ringleader.exchange.coded_sums import is_coded

ROWS, WIDE = 24, 160
FEEDBACK = [name for name in NAMES if name == POWERSGD or CODECS[name].feedback]
ALONE, TOGETHER = 1 << 10, 1 << 20
"""Bucket sizes: every matrix by itself; all parameters in one bucket."""


def linear() -> nn.Module:
    """Two matrices that are coded, and what is not: a vector, a small matrix, one that no slice reaches."""
    net = nn.Module()
    net.register_parameter("first", nn.Parameter(torch.zeros(WIDE, WIDE)))
    net.register_parameter("bias", nn.Parameter(torch.zeros(WIDE)))
    net.register_parameter("small", nn.Parameter(torch.zeros(3, WIDE)))
    net.register_parameter("second", nn.Parameter(torch.zeros(WIDE, 2 * WIDE + 1)))
    net.register_parameter("unused", nn.Parameter(torch.zeros(WIDE, WIDE)))
    return net


def slopes(step: int, shard: int, shards: int) -> dict[str, Tensor]:
    """The gradients of one slice, whatever the weights: the loss is linear. Magnitudes differ between elements."""
    generator = torch.Generator().manual_seed(100 * step + shard)
    spread = torch.logspace(-3, 1, WIDE)
    shapes = {"first": (WIDE, WIDE), "bias": (WIDE,), "small": (3, WIDE), "second": (2 * WIDE + 1, WIDE)}
    drawn = {name: torch.randn(shape, generator=generator) * spread for name, shape in shapes.items()}
    return drawn | {"second": drawn["second"].t().contiguous()}


def codings(codec: str, world: int) -> list[Coding]:
    return [Coding(codec, [name for name, _ in linear().named_parameters()]) for _ in range(world)]


def step(member: Member, number: int, present: Sequence[int]) -> dict[str, Tensor]:
    """One exchange; the sum of the gradients."""
    backward(member, number, present)
    member.exchange.finish(torch.zeros(len(member.plan.members)))
    return {name: p.grad.clone() for name, p in member.net.named_parameters()}


def backward(member: Member, number: int, present: Sequence[int]) -> None:
    member.exchange.begin_step(frozenset(present))
    if member.rank in present:
        member.exchange.begin_slice(member.rank)
        parameters = dict(member.net.named_parameters())
        drawn = slopes(number, member.rank, member.plan.world)
        sum((parameters[name] * slope).sum() for name, slope in drawn.items()).backward()
        member.exchange.end_slice()


def true_sum(number: int, present: Sequence[int], world: int) -> dict[str, Tensor]:
    drawn = [slopes(number, rank, world) for rank in present]
    return {name: sum(d[name] for d in drawn) for name in drawn[0]}


def owed(coding: Coding, name: str) -> Tensor | float:
    residual = coding.residuals.owed(name)
    return 0.0 if residual is None else residual


def coded(world: int, act: Callable[[Member], object], kept: list[Coding], capacity: int = ALONE) -> list:
    return on_members(
        plan_of(world, world),
        act,
        same_bits=False,
        make=linear,
        codings=kept[:world],
        capacity_bytes=capacity,
    )


@pytest.mark.parametrize("capacity", [ALONE, TOGETHER])
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("codec", NAMES)
def test_all_members_hold_the_same_gradients(codec: str, world: int, capacity: int) -> None:
    def act(member: Member) -> list[dict[str, Tensor]]:
        return [
            step(member, 0, range(world)),
            step(member, 1, range(world - 1)),
            step(member, 2, range(world)),
        ]

    first, *others = coded(world, act, codings(codec, world), capacity)
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert all(torch.equal(a[name], b[name]) for name in a)
    truth = true_sum(0, range(world), world)
    for name in ("bias", "small"):
        # Not coded: the sum itself, up to the order of adding.
        assert torch.allclose(first[0][name], truth[name], rtol=1e-5, atol=1e-5)
    assert not torch.equal(first[0]["first"], truth["first"])
    assert not first[0]["unused"].any()


def test_messages_through_shared_memory_give_the_same_bits() -> None:
    def act(member: Member) -> dict[str, Tensor]:
        return step(member, 0, range(3))

    plain = coded(3, act, codings("int8", 3))
    shared = on_members(
        plan_of(3, 3),
        act,
        same_bits=False,
        make=linear,
        codings=codings("int8", 3),
        members=transports(3, shared=True),
    )
    for a, b in zip(plain, shared, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in ("first", "second"))


def conserved(applied: dict[str, Tensor], truth: dict[str, Tensor], debtors: Sequence[Coding]) -> None:
    """Everything that was ever computed was applied, or somebody still owes it."""
    for name in ("first", "second"):
        found = applied[name].flatten() + sum(owed(coding, name) for coding in debtors)
        # Sums of some dozens of float32, in another order, relative to the largest term of the column.
        assert torch.allclose(found, truth[name].flatten(), rtol=1e-4, atol=1e-3)
        assert any(torch.as_tensor(owed(coding, name)).abs().sum() > 0 for coding in debtors)


def add(total: dict[str, Tensor], more: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: total[name] + more[name] if total else more[name] for name in more}


@pytest.mark.parametrize("capacity", [ALONE, TOGETHER])
@pytest.mark.parametrize("codec", FEEDBACK)
def test_through_resizes_and_steps_without_rows_every_gradient_is_applied_or_owed(codec, capacity):
    kept = codings(codec, 4)
    applied: dict[str, Tensor] = {}
    truth: dict[str, Tensor] = {}
    number = 0
    for world, absent in [(3, 0), (4, 1), (2, 0), (1, 0), (3, 2), (3, 0)]:
        present = range(world - absent)

        def act(member: Member, first: int = number, present: range = present) -> dict[str, Tensor]:
            return add(step(member, first, present), step(member, first + 1, present))

        applied = add(applied, coded(world, act, kept, capacity)[0])
        for k in (number, number + 1):
            truth = add(truth, true_sum(k, present, world))
        number += 2
    conserved(applied, truth, kept)


def test_alone_a_worker_pays_what_it_owes():
    kept = codings("onebit", 2)
    coded(2, lambda member: step(member, 0, (0, 1)), kept)
    residual = kept[0].residuals.owed("first").clone()
    assert residual.any()
    (alone,) = coded(1, lambda member: step(member, 1, (0,)), kept)
    assert torch.equal(alone["first"].flatten(), slopes(1, 0, 1)["first"].flatten() + residual)
    assert not kept[0].residuals.owed("first").any()


def test_a_parameter_that_no_slice_reaches_keeps_its_residual_for_later():
    kept = codings("onebit", 2)

    def act(member: Member) -> tuple[Tensor, Tensor, Tensor]:
        step(member, 0, (0, 1))
        before = kept[member.rank].residuals.owed("first").clone()
        member.exchange.begin_step(frozenset((0, 1)))
        member.exchange.begin_slice(member.rank)
        dict(member.net.named_parameters())["bias"].sum().backward()
        member.exchange.end_slice()
        member.exchange.finish(torch.zeros(2))
        return before, kept[member.rank].residuals.owed("first"), member.net.first.grad

    for before, after, gradient in coded(2, act, kept):
        assert torch.equal(before, after)
        assert not gradient.any()


@pytest.mark.parametrize("codec", FEEDBACK)
def test_a_step_that_is_done_again_is_counted_once(codec):
    kept = codings(codec, 2)

    def broken(member: Member) -> dict[str, Tensor]:
        done = step(member, 0, (0, 1))
        if member.rank == 0:
            with pytest.raises(ExchangeBroken):
                step(member, 1, (0, 1))
        return done

    applied = coded(2, broken, kept)[0]
    again = coded(2, lambda member: step(member, 1, (0, 1)), kept)[0]
    truth = add(true_sum(0, (0, 1), 2), true_sum(1, (0, 1), 2))
    conserved(add(applied, again), truth, kept)


@pytest.mark.parametrize("codec", FEEDBACK)
def test_who_heals_over_a_step_owes_what_it_did_not_send_in_it(codec):
    """Rank 1's messages of step 1 are in the sum that rank 0 applied; rank 1 breaks before it has the sum itself."""
    kept = codings(codec, 2)

    def act(member: Member) -> dict[str, Tensor]:
        done = step(member, 0, (0, 1))
        backward(member, 1, (0, 1))
        if member.rank == 0:
            member.exchange.finish(torch.zeros(2))
            return add(done, {name: p.grad.clone() for name, p in member.net.named_parameters()})
        # The sums are there, but the step ends otherwise than by `finish`: `meet` answers the word of rank 0.
        member.exchange.meet(torch.zeros(2))
        member.exchange._communicator.wait(member.exchange._tickets)
        return done

    applied = coded(2, act, kept)[0]
    kept[1].heal(steps=1)
    truth = add(true_sum(0, (0, 1), 2), true_sum(1, (0, 1), 2))
    conserved(applied, truth, kept)


def test_who_heals_over_no_step_owes_what_it_owed():
    kept = codings("int8", 2)
    coded(2, lambda member: step(member, 0, (0, 1)), kept)
    before = kept[0].residuals.owed("first").clone()
    kept[0].residuals.open("first", before, joins=True)
    kept[0].heal(steps=0)
    kept[0].residuals.commit()
    assert torch.equal(kept[0].residuals.owed("first"), before)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("world", [2, 4])
def test_the_bytes_counted_are_those_sent(codec: str, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [0] * world
    isend = InProcessTransport.isend

    def counting(self: InProcessTransport, tensor: Tensor, peer: int, tag: int) -> object:
        if tensor.dtype is torch.uint8:
            sent[self.rank] += tensor.nbytes
        return isend(self, tensor, peer, tag)

    monkeypatch.setattr(InProcessTransport, "isend", counting)

    kept = codings(codec, world)
    coded(world, lambda member: step(member, 0, range(world)), kept)
    assert [coding.wire_bytes for coding in kept] == sent
    # An owner has a part of each matrix; a rank sends the others' parts once and its own to all others.
    sizes = [p.numel() for p in linear().parameters() if is_coded(p, codec)]
    owned = [CODECS[codec].size((r + 1) * n // world - r * n // world) for n in sizes for r in range(world)]
    # Each part is padded to four bytes at most.
    assert 0 <= sum(sent) - 2 * (world - 1) * sum(owned) < 4 * 2 * (world - 1) * len(owned)
    assert sum(sent) <= 2 * (world - 1) * 4 * sum(sizes) / 2


def test_powersgd_sends_two_thin_factors() -> None:
    kept = codings(POWERSGD, 3)
    coded(3, lambda member: step(member, 0, range(3)), kept)
    sizes = [sum(p.shape) for p in linear().parameters() if is_coded(p, POWERSGD)]
    # Rank 4 in float32: the first factor once to its root and once back from it; the second one as `direct`, twice.
    assert sum(coding.wire_bytes for coding in kept) == 4 * 4 * 2 * 2 * sum(sizes)
