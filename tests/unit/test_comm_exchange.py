"""Ring and parameter server over threads: the same bits, the right gradients, overlap, and a broken peer."""

import threading
from typing import get_args

import pytest
import torch
from exchange_members import HANG_S, ROWS, Member, on_members, plan_of, slice_rows, small_net
from torch import nn

from ringleader.comm.transports import Transport
from ringleader.comm.transports.inprocess import Hub
from ringleader.errors import ExchangeBroken, StepMisuse
from ringleader.exchange import open_exchange
from ringleader.spec.sync_keys import Algorithm

SHARDS = 8


def trained(
    workers: int, servers: int = 0, absent: frozenset[int] = frozenset(), *, shared: bool = False
) -> list[dict[str, torch.Tensor]]:
    return on_members(plan_of(workers, SHARDS, servers), lambda m: m.train(4, absent), shared=shared)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("absent", [frozenset(), frozenset({0, 1}), frozenset({3}), frozenset(range(1, 8))])
def test_ring_and_parameter_server_of_any_world_train_to_the_same_bits(absent):
    (alone,) = trained(1, absent=absent)
    for workers in (2, 3, 5, 8):
        assert all(equal(alone, net) for net in trained(workers, absent=absent)), f"ring of {workers}"
    for workers in (2, 3, 5, 8):
        nets = trained(workers, absent=absent, shared=True)
        assert all(equal(alone, net) for net in nets), f"in place, {workers}"
    for workers in (1, 3, 4):
        assert all(equal(alone, net) for net in trained(workers, 1, absent)), f"server with {workers}"


@pytest.mark.parametrize("servers", [0, 1])
def test_everybody_reads_the_same_exact_word(servers):
    plan = plan_of(3, SHARDS, servers)

    def words(member: Member) -> list[torch.Tensor]:
        member.train(2)
        return member.words

    expected = [torch.full((3 + servers,), 2.0**-24 + step) for step in range(2)]
    for seen in on_members(plan, words):
        assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


KINDS = [(algorithm, False) for algorithm in get_args(Algorithm)] + [("auto", True), ("ring", True)]


@pytest.mark.parametrize(("algorithm", "shared"), KINDS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_equal_those_of_one_process_on_the_whole_batch(algorithm, shared, world):
    plan = plan_of(world, world)

    def gradients(member: Member) -> list[torch.Tensor]:
        member.gradient(0, frozenset(range(world)))
        member.exchange.finish(torch.zeros(world))
        return [p.grad.clone() for p in member.net.parameters()]

    net = small_net()
    x, y = slice_rows(0, 0, 1)
    ((net(x) - y) ** 2).sum().div(ROWS).backward()
    for seen in on_members(plan, gradients, same_bits=False, algorithm=algorithm, shared=shared):
        for parameter, gradient in zip(net.parameters(), seen, strict=True):
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            # The rows are added in another order: some units in the last place of float32.
            assert torch.allclose(gradient, expected, rtol=1e-5, atol=1e-6)


class Twice(nn.Module):
    """Two weights that are added as views: autograd hands both the same memory as their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.ones(6, 300)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.one[None] + self.other[None])[0]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("world", "shards"), [(1, 2), (2, 2), (2, 4)])
def test_each_of_two_parameters_whose_gradients_lie_in_the_same_memory_gets_its_own(world, shards, shared):
    rows = slice_rows(0, 0, 1)[0]

    def gradients(member: Member) -> list[torch.Tensor]:
        member.exchange.begin_step(frozenset(range(shards)))
        for shard in member.plan.shards_of(member.rank):
            member.exchange.begin_slice(shard)
            member.net(rows[shard::shards]).square().sum().backward()
            member.exchange.end_slice()
        member.exchange.finish(torch.zeros(world))
        return [p.grad.clone() for p in member.net.parameters()]

    net = Twice()
    net(rows).square().sum().backward()
    for seen in on_members(plan_of(world, shards), gradients, make=Twice, shared=shared):
        for parameter, gradient in zip(net.parameters(), seen, strict=True):
            # The rows are added in another order: some units in the last place of float32.
            assert torch.allclose(gradient, parameter.grad, rtol=1e-5, atol=1e-4)


class Adversaries(nn.Module):
    """Two nets with buckets of their own, by turns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.one, self.other = nn.Linear(6, 300, bias=False), nn.Linear(300, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x))


@pytest.mark.parametrize("servers", [0, 1, 2])
@pytest.mark.parametrize("workers", [2, 3])
def test_of_a_phase_only_the_buckets_of_its_parameters_are_sent(workers: int, servers: int) -> None:
    size = workers + servers

    def run(members: list[Transport] | None, *, chosen: bool) -> list[dict[str, torch.Tensor]]:
        def act(member: Member) -> dict[str, torch.Tensor]:
            for step, net in enumerate([member.net.one, member.net.other] * 2):
                stepped = list(net.parameters())
                member.exchange.begin_step(frozenset(range(4)), stepped if chosen else None)
                for shard in member.plan.shards_of(member.rank):
                    member.exchange.begin_slice(shard)
                    x, y = slice_rows(step, shard, 4)
                    ((member.net(x) - y) ** 2).sum().backward(inputs=stepped)
                    member.exchange.end_slice()
                member.exchange.finish(torch.zeros(size))
                if member.exchange.updates:
                    for p in member.net.parameters():
                        if not any(p is each for each in stepped):
                            p.grad = None
                    member.optimizer.step()
                member.exchange.publish()
            return {name: p.detach().clone() for name, p in member.net.named_parameters()}

        # Named: to find the quickest schedule sends bytes too.
        settings = {"make": Adversaries, "algorithm": "direct", "members": members, "shared": members is None}
        return on_members(plan_of(workers, 4, servers), act, **settings)

    hubs = [Hub(size) for _ in range(2)]
    every, chosen = (
        run([hub.transport(rank) for rank in range(size)], chosen=chosen)
        for hub, chosen in zip(hubs, (False, True), strict=True)
    )
    for one, *others in zip(every, chosen, run(None, chosen=True), strict=True):
        assert all(torch.equal(one[name], other[name]) for other in others for name in one)
    gradient_bytes = 4 * (6 + 3) * 300
    # Each of four phases leaves out one of the two nets' gradients, which each worker would have sent at least once.
    saved = sum(hubs[0].bytes_sent) - sum(hubs[1].bytes_sent)
    assert saved >= 2 * (workers - (servers == 0)) * gradient_bytes


def test_a_merged_slice_of_an_absent_rank_is_skipped():
    """Its rows still hold the sum of the step before."""
    plan, present = plan_of(3, 3), frozenset({0, 2})

    def gradient(member: Member) -> torch.Tensor:
        for step, shards in enumerate((frozenset(range(3)), present)):
            member.gradient(step, shards)
            member.exchange.finish(torch.zeros(3))
        return member.net[0].bias.grad.clone()

    net = small_net()
    for shard in present:
        x, y = slice_rows(1, shard, 3)
        ((net(x) - y) ** 2).sum().div(ROWS).backward()
    for algorithm in ("direct", "ring", "native"):
        first, *others = on_members(plan, gradient, same_bits=False, algorithm=algorithm)
        # Two slices in another order: some units in the last place of float32.
        assert torch.allclose(first, net[0].bias.grad, rtol=1e-5, atol=1e-6)
        # Every rank holds the same result of the same adds.
        assert all(torch.equal(first, other) for other in others)


def test_used_says_which_parameters_a_member_reached():
    def used(member: Member) -> dict[str, bool]:
        member.gradient(0, frozenset({1}))
        member.exchange.finish(torch.zeros(2))
        names = [name for name, _ in member.net.named_parameters()]
        return dict(zip(names, member.exchange.used, strict=True))

    idle, busy = on_members(plan_of(2, 2), used)
    assert not any(idle.values())
    assert [name for name, reached in busy.items() if not reached] == ["unused"]


def test_small_sums_and_state_cross_between_members():
    def talk(member: Member) -> torch.Tensor:
        values = torch.zeros(3, dtype=torch.float64)
        values[member.rank] = 0.1 * (member.rank + 1)
        total = member.exchange.all_reduce(values)
        assert torch.equal(total, torch.tensor([0.1 * (k + 1) for k in range(3)], dtype=torch.float64))
        state = torch.arange(1000, dtype=torch.int32).view(torch.uint8)
        if member.rank == 0:
            member.exchange.send_state(2, state)
            member.exchange.send_state(2, state[:0])
        elif member.rank == 2:
            assert torch.equal(member.exchange.receive_state(0), state)
            assert member.exchange.receive_state(0).numel() == 0
        return total

    on_members(plan_of(3, 3), talk)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_slice_that_does_not_reach_a_parameter_adds_plus_zero_whoever_owns_it(workers):
    def gradient(member: Member) -> float:
        (parameter,) = [p for name, p in member.net.named_parameters() if name == "unused"]
        member.exchange.begin_step(frozenset({0, 1}))
        for shard in member.plan.shards_of(member.rank):
            member.exchange.begin_slice(shard)
            if shard == 0:
                (parameter * -0.0).sum().backward()
            member.exchange.end_slice()
        member.exchange.finish(torch.zeros(workers))
        return torch.copysign(torch.ones(()), parameter.grad[0]).item()

    assert on_members(plan_of(workers, 2), gradient) == [1.0] * workers


class Recording:
    """A transport that notes whether its first bucket left while a backward was under way."""

    def __init__(self, inner: object, left: threading.Event) -> None:
        self._inner = inner
        self._left = left

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def isend(self, tensor: torch.Tensor, peer: int, tag: int) -> object:
        self._left.set()
        return self._inner.isend(tensor, peer, tag)


def test_a_bucket_leaves_before_the_backward_ends():
    hub, plan, left = Hub(2), plan_of(2, 2), threading.Event()
    net = small_net()
    exchange = open_exchange(
        architecture="ring",
        algorithm="direct",
        same_bits=True,
        plan=plan,
        rank=0,
        transport=Recording(hub.transport(0), left),
        parameters=list(net[2:].parameters()),
        word_length=1,
        buckets=None,
    )
    during = []
    hidden = net[1](net[0](torch.randn(4, 6)))
    # The gradient of `hidden` comes last: it waits until the first bucket is on its way.
    hidden.register_hook(lambda _: during.append(left.wait(HANG_S)))
    exchange.begin_step(frozenset({0, 1}))
    exchange.begin_slice(0)
    net[2:](hidden).sum().backward()
    exchange.end_slice()
    assert during == [True]
    exchange.abort()
    exchange.close()


def test_a_lost_peer_breaks_every_member():
    plan = plan_of(3, 3)
    hub = Hub(3)

    def open_one(rank: int):
        net = small_net()
        return net, open_exchange(
            architecture="ring",
            algorithm="direct",
            same_bits=True,
            plan=plan,
            rank=rank,
            transport=hub.transport(rank),
            parameters=list(net.parameters()),
            word_length=1,
            buckets=None,
        )

    members = [open_one(rank) for rank in range(2)]
    for rank, (net, exchange) in enumerate(members):
        exchange.begin_step(frozenset({0, 1, 2}))
        exchange.begin_slice(rank)
        net(torch.randn(2, 6)).sum().backward()
        exchange.end_slice()
    hub.lose(2)
    for _, exchange in members:
        with pytest.raises(ExchangeBroken, match="the exchange with rank") as caught:
            exchange.finish(torch.zeros(1))
        # The second to notice may hear it from the first, which gives up its connections.
        assert caught.value.phase in {"reduce", "word"}
        exchange.close()
        assert not exchange.buckets.tainted


def test_abort_ends_a_wait_from_another_thread():
    def wait(member: Member) -> str:
        if member.rank == 0:
            threading.Timer(0.05, member.exchange.abort).start()
            with pytest.raises(ExchangeBroken) as caught:
                member.exchange.receive_state(1)
            return caught.value.phase
        return ""

    assert on_members(plan_of(2, 2), wait)[0] in {"abort", "state"}


def test_closing_in_the_middle_of_a_step_does_not_wait_for_the_peers(monkeypatch: pytest.MonkeyPatch):
    """The peer waits until it is closed, half as long as a transfer would."""
    monkeypatch.setattr("ringleader.comm.communicator.JOIN_S", HANG_S / 2)
    left = threading.Event()

    def leave(member: Member) -> None:
        if member.rank == 0:
            member.gradient(0, frozenset({0, 1}))
            member.exchange.close()
            left.set()
            assert not member.exchange.buckets.tainted
        assert left.wait(HANG_S / 2)

    on_members(plan_of(2, 2), leave)


def test_two_gradients_for_one_parameter_in_a_slice_are_refused():
    net = small_net()
    exchange = open_exchange(
        architecture="ring",
        algorithm="auto",
        same_bits=True,
        plan=plan_of(1, 1),
        rank=0,
        transport=None,
        parameters=list(net.parameters()),
        word_length=1,
        buckets=None,
    )
    exchange.begin_step(frozenset({0}))
    exchange.begin_slice(0)
    net(torch.randn(2, 6)).sum().backward()
    with pytest.raises(StepMisuse, match="two gradients"):
        net(torch.randn(2, 6)).sum().backward()
    exchange.close()
