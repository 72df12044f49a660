"""Members of one generation as threads: each trains the same small net through its own exchange."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any, get_args

import torch
from rooms import ROOM, SECRET
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.comm.buckets import Buckets
from ringleader.comm.rows import SparseTables
from ringleader.comm.transports import Transport
from ringleader.comm.transports.inprocess import Hub
from ringleader.comm.transports.meeting import MeetingCall, meet
from ringleader.comm.transports.shared import SharedTransport
from ringleader.elastic import NOWHERE, Plan
from ringleader.errors import SpecInvalid
from ringleader.exchange import Coding, Exchange, open_exchange
from ringleader.exchange.registry import COPYING, share_out
from ringleader.spec import JobSpec
from ringleader.spec.sync import Sync
from ringleader.spec.sync_keys import Architecture
from ringleader.train.state.norms import clip

ROWS = 24
HANG_S = 60.0
NO_TABLES: Mapping[int, str] = {}


def synchronous() -> dict[str, Sync]:
    """Every way of keeping in step that the job file admits and that promises the same bits, by its name."""
    found: dict[str, Sync] = {}
    for inter, intra in product(get_args(Architecture), repeat=2):
        with suppress(SpecInvalid):
            words = {"inter_node": inter, "intra_node": intra}
            sync = JobSpec.parse({"name": "any", "entrypoint": "any:any", "sync": words}).sync
            if sync.same_bits:
                found[sync.architecture] = sync
    return found


def plan_of(
    workers: int,
    shards: int,
    servers: int = 0,
    generation: int = 1,
    *,
    backups: int = 0,
    slots: tuple[int, ...] = (),
    parts: int = 0,
) -> Plan:
    return Plan(
        attempt=1,
        generation=generation,
        members=tuple(f"w{k}" for k in range(workers + servers)),
        servers=servers,
        shards=shards,
        start_transaction=0,
        heals=(),
        recorded_step=0,
        meeting=NOWHERE,
        cause="start",
        parts=parts,
        backups=backups,
        slots=slots,
    )


def small_net() -> nn.Module:
    """Parameters of many sizes, one never used, one below and one above the size that gets a bucket alone."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))
    net.register_parameter("unused", nn.Parameter(torch.ones(5)))
    return net


def momentum(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def in_pairs(some: Sequence[Any], two: tuple[Any, Any]) -> list[tuple[Any, Any, bool]]:
    """Cases in which any two of these, and whether memory is shared, are together at least once."""
    return [
        (one, other, shared ^ bool(k % 2))
        for k, one in enumerate(some)
        for other, shared in zip(two, (False, True), strict=True)
    ]


def slice_rows(step: int, shard: int, shards: int) -> tuple[Tensor, Tensor]:
    """The rows of one slice of a step's batch of ROWS."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, 6, generator=generator)
    y = torch.randn(ROWS, 3, generator=generator)
    rows = slice(shard * ROWS // shards, (shard + 1) * ROWS // shards)
    return x[rows], y[rows]


@dataclass
class Member:
    """One member's net, optimizer and exchange."""

    plan: Plan
    rank: int
    exchange: Exchange
    net: nn.Module
    optimizer: Optimizer
    clip_norm: float | None = None
    words: list[Tensor] = field(default_factory=list)

    def train(self, steps: int, absent: frozenset[int] = frozenset()) -> dict[str, Tensor]:
        present = frozenset(range(self.plan.shards)) - absent
        for step in range(steps):
            self.gradient(step, present)
            word = torch.zeros(len(self.plan.members))
            word[self.rank] = 2.0**-24 + step
            self.words.append(self.exchange.finish(word))
            if self.exchange.updates:
                if self.clip_norm is not None:
                    clip(list(self.net.parameters()), self.clip_norm, self.exchange.complete)
                self.optimizer.step()
            self.exchange.publish()
        return {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def gradient(self, step: int, present: frozenset[int]) -> None:
        self.exchange.begin_step(present)
        for shard in self.plan.shards_of(self.rank):
            if shard in present:
                self.exchange.begin_slice(shard)
                x, y = slice_rows(step, shard, self.plan.shards)
                ((self.net(x) - y) ** 2).sum().div(ROWS).backward()
                self.exchange.end_slice()


def on_nodes(nodes: Sequence[int], store_port: int, generation: int = 1) -> list[Transport]:
    """Members that believe they live on these nodes: shared memory inside a node, gloo between them."""

    def join(rank: int) -> Transport:
        host = f"127.0.0.{1 + nodes[rank]}"
        place = f"{ROOM}/1.{generation}"
        return meet(MeetingCall("127.0.0.1", store_port, place, rank, len(nodes), 60.0, SECRET, host))

    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(join, range(len(nodes))))


def transports(size: int, *, shared: bool) -> list[Transport]:
    """Of one generation's threads."""
    if not shared:
        hub = Hub(size, HANG_S)
        return [hub.transport(rank) for rank in range(size)]
    members = [SharedTransport(rank, size, "here", HANG_S) for rank in range(size)]
    for member in members:
        assert member.attach([m.place for m in members]) == frozenset(range(size))
    return members


def on_members(
    plan: Plan,
    act: Callable[[Member], object],
    *,
    same_bits: bool = True,
    algorithm: str = "auto",
    shared: bool = False,
    members: list[Transport] | None = None,
    make: Callable[[], nn.Module] = small_net,
    codings: Sequence[Coding] = (),
    architecture: str = "",
    capacity_bytes: int = 1 << 10,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = momentum,
    clip_norm: float | None = None,
    tables: Mapping[int, str] = NO_TABLES,
) -> list:
    """Run `act` for every member of the plan on its own thread; their results in rank order."""
    size = len(plan.members)
    architecture = architecture or ("parameter_server" if plan.servers else "ring")
    parts = 1 if architecture in COPYING else plan.parts or plan.servers
    members = members or transports(size, shared=shared)
    # Made here: the random generator is shared by all threads.
    nets = [make() for _ in range(size)]

    def one(rank: int) -> object:
        net = nets[rank]
        parameters = list(net.parameters())
        buckets = Buckets(
            parameters,
            capacity_bytes=capacity_bytes,
            alone_bytes=4 * capacity_bytes,
            shared=shared,
            owners=share_out(parameters, parts),
            tables=SparseTables(parameters, tables),
        )
        exchange = open_exchange(
            architecture=architecture,
            algorithm=algorithm,
            same_bits=same_bits,
            plan=plan,
            rank=rank,
            transport=members[rank] if size > 1 else None,
            parameters=list(net.parameters()),
            word_length=size,
            buckets=buckets,
            coding=codings[rank] if codings else None,
            tables=tables,
        )
        assert exchange.buckets is buckets
        if size > 1:
            exchange.go_by(exchange.measure())
        try:
            return act(Member(plan, rank, exchange, net, optimizer(net.parameters()), clip_norm))
        finally:
            exchange.close()
            exchange.buckets.release()  # hooks keep a parameter and what they call alive for ever

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))
