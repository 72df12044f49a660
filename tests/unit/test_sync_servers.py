"""Several parameter servers: the bits of the ring, a part of the parameters and of the optimizer's state each."""

from itertools import product

import pytest
import torch
from exchange_members import Member, in_pairs, momentum, on_members, plan_of, small_net
from torch import nn

from ringleader.comm.transports.inprocess import Hub
from ringleader.exchange.registry import share_out

SHARDS, STEPS = 8, 4
"""Three workers of eight shards bring several partial sums each."""

ABSENT = (frozenset(), frozenset({0, 1, 4}), frozenset(range(1, 8)))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def trained(workers, servers, optimizer, *, clip_norm=None, absent=frozenset(), shared=False):
    return on_members(
        plan_of(workers, SHARDS, servers),
        lambda member: member.train(STEPS, absent),
        shared=shared,
        optimizer=optimizer,
        clip_norm=clip_norm,
    )


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.everyday
@pytest.mark.parametrize(
    ("optimizer", "clip_norm", "shared"), in_pairs((momentum, adam, adamw), (None, 0.05))
)
def test_any_number_of_servers_has_the_bits_of_the_ring(optimizer, clip_norm, shared):
    alone = [trained(1, 0, optimizer, clip_norm=clip_norm, absent=absent)[0] for absent in ABSENT]
    for servers, workers in product((1, 2, 3), (1, 2, 3, 4)):
        k = (servers + workers) % len(ABSENT)
        nets = trained(workers, servers, optimizer, clip_norm=clip_norm, absent=ABSENT[k], shared=shared)
        assert len(nets) == workers + servers
        assert all(same(alone[k], net) for net in nets), (servers, workers, ABSENT[k])


class Turned(nn.Module):
    """Weights of 16 bits that do not lie in memory row by row: one dense, one part of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        one, other = (torch.randn(n, 41, generator=generator).bfloat16() for n in (6, 3))
        self.one, self.other = nn.Parameter(one.t()), nn.Parameter(other.repeat(1, 2)[:, :41].t())
        self.bias = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x.bfloat16() @ self.one.t())
        return (hidden @ self.other + self.bias).float()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_servers_have_the_bits_of_the_ring_whatever_the_layout_of_weights(optimizer, shared):
    """Kernels for 16 bits round by layout."""
    (alone,) = on_members(plan_of(1, SHARDS), lambda m: m.train(STEPS), make=Turned, optimizer=optimizer)
    for servers in (1, 2):
        nets = on_members(
            plan_of(2, SHARDS, servers),
            lambda member: member.train(STEPS),
            make=Turned,
            optimizer=optimizer,
            shared=shared,
        )
        assert all(same(alone, net) for net in nets)


def test_the_norm_that_clips_is_that_of_all_parts_together():
    """The clipped weights differ from the unclipped ones, and from those clipped by one server's part of the norm."""
    (free,) = trained(1, 0, momentum)
    (clipped,) = trained(1, 0, momentum, clip_norm=0.05)
    assert not same(free, clipped)

    def by_parts(member: Member) -> dict[str, torch.Tensor]:
        member.exchange.complete = lambda sums: sums
        return member.train(STEPS)

    nets = on_members(plan_of(2, SHARDS, 2), by_parts, clip_norm=0.05)
    assert not same(clipped, nets[0])


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_holds_the_optimizer_state_of_its_part_and_of_no_other(shared):
    def states(member: Member) -> set[str]:
        member.train(2)
        return {name for name, p in member.net.named_parameters() if p in member.optimizer.state}

    plan = plan_of(2, SHARDS, 3)
    everything = {name for name, _ in small_net().named_parameters()}
    *workers, one, two, three = on_members(plan, states, shared=shared, optimizer=adam)
    assert workers == [set(), set()]
    assert one | two | three == everything
    assert len(one) + len(two) + len(three) == len(everything)


def test_parts_are_balanced_by_bytes_to_within_the_largest_parameter():
    parameters = list(small_net().parameters())
    largest = max(p.nbytes for p in parameters)
    for servers in range(1, 6):
        owners = share_out(parameters, servers)
        loads = [
            sum(p.nbytes for p, o in zip(parameters, owners, strict=True) if o == s) for s in range(servers)
        ]
        assert sum(loads) == sum(p.nbytes for p in parameters)
        assert max(loads) - min(loads) <= largest


def test_there_may_be_more_servers_than_parameters():
    nets = on_members(plan_of(2, SHARDS, 9), lambda member: member.train(2))
    assert all(same(nets[0], net) for net in nets)


def test_everybody_reads_the_same_exact_word_with_several_servers():
    def words(member: Member) -> list[torch.Tensor]:
        member.train(2)
        return member.words

    expected = [torch.full((5,), 2.0**-24 + step) for step in range(2)]
    for seen in on_members(plan_of(2, SHARDS, 3), words):
        assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


BACKED = [(2, 2, (0, 1)), (2, 2, (1,)), (3, 3, (0, 1, 2)), (3, 3, (2, 0)), (4, 4, (1, 3, 0))]
"""(parts, servers of the job, slots that are there): all, and one of them lost."""


@pytest.mark.parametrize("nodes", [(), ((0, 1, 3), (2, 4)), ((0, 4), (1, 2), (3,))])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("architecture", ["parameter_server", "parameter_server/ring"])
def test_servers_with_backups_have_the_bits_of_the_ring(architecture, clip_norm, nodes):
    (alone,) = trained(1, 0, adam, clip_norm=clip_norm, absent=ABSENT[1])
    for parts, _, slots in BACKED:
        workers = 5 - len(slots)
        plan = plan_of(workers, SHARDS, len(slots), backups=1, slots=slots, parts=parts)
        hub = Hub(5)
        nets = on_members(
            plan,
            lambda member: member.train(STEPS, ABSENT[1]),
            architecture=architecture,
            members=[hub.transport(rank, nodes) for rank in range(5)] if nodes else None,
            shared=not nodes,
            optimizer=adam,
            clip_norm=clip_norm,
        )
        assert all(same(alone, net) for net in nets), (slots, nodes)


@pytest.mark.parametrize("slots", [(0, 1, 2), (2, 0)])
def test_every_part_is_held_by_its_own_server_and_by_the_one_after_it(slots):
    def states(member: Member) -> set[str]:
        member.train(2)
        return {name for name, p in member.net.named_parameters() if p in member.optimizer.state}

    owners = share_out(list(small_net().parameters()), 3)
    names = [name for name, _ in small_net().named_parameters()]
    plan = plan_of(2, SHARDS, len(slots), backups=1, slots=slots, parts=3)
    _, _, *servers = on_members(plan, states, shared=True, optimizer=adam)
    for slot, held in zip(slots, servers, strict=True):
        mine = {slot, (slot - 1) % 3}
        assert held == {name for name, owner in zip(names, owners, strict=True) if owner in mine}


def test_where_sums_may_differ_everybody_takes_the_weights_of_one_server():
    nets = on_members(plan_of(3, 3, 2, backups=1, parts=2), lambda member: member.train(2), same_bits=False)
    assert all(same(nets[0], net) for net in nets)
