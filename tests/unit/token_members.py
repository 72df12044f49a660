"""Members of a token ring as threads, over links that are late and break on cue. An item moves one element of each span
by one, so that the weights show which items they hold."""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from exchange_members import plan_of
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.transports import Transport
from ringleader.comm.transports.inprocess import Hub
from ringleader.comm.transports.transport import Work
from ringleader.errors import ExchangeBroken
from ringleader.exchange import Exchange, open_exchange
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.flat_weights import ALIGNED
from ringleader.train.modes.token_ring.gossip import Gossip
from ringleader.train.modes.token_ring.regeneration import TokenCopy, todo
from ringleader.train.modes.token_ring.resync import gather, resync
from ringleader.train.modes.token_ring.token_exchange import HEADER, WEIGHTS, TokenExchange
from ringleader.train.modes.token_ring.topology import ring_order
from ringleader.train.modes.token_ring.weight_spans import WeightSpans

SHARDS = 4


class Link:
    """A transport whose sends are late by up to 2 ms, counted, and which loses its member at one of its operations."""

    shared = False
    together = None

    def __init__(
        self, inner: Transport, groups: tuple[tuple[int, ...], ...], seed: int | None, lost_at: int = -1
    ) -> None:
        self._inner = inner
        self.rank, self.size, self.groups = inner.rank, inner.size, groups or inner.groups
        self.seal = inner.seal
        self.sent: Counter[tuple[int, int]] = Counter()
        self.lost = False
        self._random = None if seed is None else random.Random(f"{seed}/{self.rank}")
        self._left = lost_at
        self._never = threading.Event()

    @property
    def over(self) -> str:
        return self._inner.over

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if self._random is not None:
            self._never.wait(self._random.random() * 2e-3)
        self._operation()
        self.sent[peer, tag] += tensor.nbytes
        return self._inner.isend(tensor, peer, tag)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        self._operation()
        return self._inner.irecv(tensor, peer, tag)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        return self._inner.native_all_reduce(tensor)

    def board(self, slots: int, rows: int) -> None:
        return None

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()

    def _operation(self) -> None:
        self._left -= 1
        if self._left == -1:
            self.lost = True
            self._inner.abort()

    def bytes_with(self, tag: int, peers: Sequence[int] | None = None) -> int:
        return sum(n for (peer, t), n in self.sent.items() if t == tag and (peers is None or peer in peers))

    @property
    def hops(self) -> int:
        """Tokens passed on."""
        return self.bytes_with(HEADER) // (7 * 8)

    @property
    def weight_bytes(self) -> int:
        return self.bytes_with(WEIGHTS)


@dataclass
class World:
    """What holds for all members. `settled` are items that somebody has seen everywhere; nobody computes them again."""

    steps: int
    spans: int
    staleness: int | None = None
    halt_at: int = -1
    settled: set[int] = field(default_factory=set)
    computed: Counter[int] = field(default_factory=Counter)

    @property
    def end(self) -> int:
        return self.steps * SHARDS

    @property
    def width(self) -> int:
        return -(-self.end // ALIGNED) * ALIGNED


class Member:
    """One worker: its weights and tokens, from generation to generation."""

    def __init__(self, world: World, *, healed: bool) -> None:
        self.world = world
        self.weights = Parameter(torch.zeros(world.spans, world.width))
        self.spans = WeightSpans([self.weights], world.spans)
        self.news = Gossip()
        self.spans.begin([])
        self.halted = False
        if healed:
            self.spans.forget()

    def serve(self, exchange: Exchange, rank: int, size: int, groups: Sequence[Sequence[int]]) -> bool:
        """One generation. Returns whether it came to its end."""
        try:
            self.spans.open()
            everybody = gather(exchange, (self.spans.copies(), self.news.all()), TokenCopy, ItemSet)
            self.news.join([known for _, known in everybody])
            regenerated = resync(exchange, self.spans, [copies for copies, _ in everybody])
            self.spans.take_over()
            circulation = TokenExchange(
                exchange.communicator, ring_order(groups, size), self.spans, self.news
            )
            circulation.start()
            for offset, shard, spans in todo(
                regenerated, plan_of(size, SHARDS).shards_of(rank), SHARDS, self.world.steps
            ):
                self._wait(circulation)
                if circulation.halted:
                    break
                self._compute(offset * SHARDS + shard, spans)
                circulation.added()
                if rank == 0 and self.spans.held[0].items.floor >= self.world.halt_at >= 0:
                    circulation.halt()
                self._look(circulation)
            self.halted = circulation.halted
            circulation.finish()
            while not circulation.over(0.05):
                self._look(circulation)
        except ExchangeBroken:
            return False
        self.spans.settle()
        self.spans.take_over()
        return True

    def _compute(self, item: int, spans: Sequence[int]) -> None:
        assert item not in self.world.settled, "what is settled is computed again"
        self.spans.take_over()
        before = self.weights.detach().clone()
        self.news.report(item, np.array([float(item)]))
        with torch.no_grad():
            self.weights[:, item] += 1
        self.spans.owe([item], 1.0, spans)
        assert (self.weights.detach() >= before).all(), "weights went back while nothing was lost"
        self.world.computed[item] += 1

    def _wait(self, circulation: TokenExchange) -> None:
        most = self.world.staleness
        while most is not None and self.spans.num_owed > most and not circulation.halted:
            self._look(circulation)
            self.spans.wait(0.01)

    def _look(self, circulation: TokenExchange) -> None:
        circulation.over()
        everywhere = self.spans.everywhere()
        self.world.settled.update(item for item in range(self.world.end) if item in everywhere)
        assert all(item in self.news.reports for item in range(self.world.end) if item in everywhere)


def generation(
    members: Sequence[Member],
    *,
    groups: tuple[tuple[int, ...], ...] = (),
    seed: int | None = None,
    lost: dict[int, int] | None = None,
    transports: Sequence[Transport] = (),
) -> tuple[list[bool], list[Link]]:
    """Let all members serve one generation. `lost`: rank → the operation of its link at which it is lost."""
    hub, size = Hub(len(members)), len(members)
    inner = transports or [hub.transport(rank) for rank in range(size)]
    links = [Link(inner[rank], groups, seed, (lost or {}).get(rank, -1)) for rank in range(size)]

    def one(rank: int) -> bool:
        exchange = open_exchange(
            architecture="token_ring",
            algorithm="auto",
            same_bits=False,
            plan=replace(plan_of(size, SHARDS)),
            rank=rank,
            transport=links[rank] if size > 1 else None,
            parameters=[],
            word_length=size,
            buckets=None,
        )
        try:
            return members[rank].serve(exchange, rank, size, links[rank].groups)
        finally:
            exchange.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size))), links
