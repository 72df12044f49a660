"""A worker's client of servers that lease items: requests and pulls go on one lane, pushes on the other, beside
training."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ringleader.comm.buckets import Buckets
from ringleader.comm.communicator import EXPRESS, Communicator, Ticket
from ringleader.comm.executor import Scratch
from ringleader.comm.rows import SparseRows
from ringleader.comm.transports import Transport
from ringleader.exchange.sparse_messages import body_bytes, packed, unpacked
from ringleader.exchange.sparse_sums import store
from ringleader.train.modes.async_server.messages import (
    ANSWER,
    ASK,
    PUSH,
    RECEIPT,
    MessageLayout,
    PullReply,
    PullRequest,
    PushHeader,
    RequestKind,
)
from ringleader.train.modes.async_server.server_share import HeldBy, ServerShare


class ServerClient:
    """One worker's client in one loop of one generation. Every call may raise ExchangeBroken.

    A push goes to server 0 last: what server 0 counts, all others have counted.

    Args:
        servers: ranks of the servers, server 0 first.
        held_by: for each part of the parameters the servers that hold it, counted among the servers, first the one
            whose weights are pulled.
    """

    def __init__(
        self,
        communicator: Communicator,
        buckets: Buckets,
        servers: Sequence[int],
        held_by: HeldBy,
        layout: MessageLayout,
    ) -> None:
        self._communicator = communicator
        self._buckets = buckets
        self._servers = servers
        self._layout = layout
        self._pushed = [ServerShare.held(buckets, held_by, k) for k in range(len(servers))]
        self._pulled = [ServerShare.shown(buckets, held_by, k) for k in range(len(servers))]
        self._weights = {b.number: b.like.new_empty(b.length) for b in buckets.buckets}
        self._news: list[list[SparseRows]] = [[] for _ in servers]
        self._left = torch.empty(layout.buffers, dtype=torch.uint8)
        self._have = [-1] * len(servers)
        self._came: list[bool] = [False] * len(servers)
        self._answer: PullReply | None = None
        self._pulling: Ticket | None = None
        self._pushing: Ticket | None = None

    @property
    def have(self) -> tuple[int, ...]:
        """The version of each server's weights that the parameters hold."""
        return tuple(self._have)

    def ask(self, wish: RequestKind, stop: int = -1) -> PullReply:
        """Send a request and wait for server 0's reply. Fresh weights are on their way: `take_over` waits for them.

        Args:
            stop: the update after which the loop shall end; -1: none.
        """
        asked = self._communicator.submit_call(
            lambda _, transport: self._ask(transport, PullRequest(wish, self._have[0], stop=stop)),
            [],
            phase="lease",
            bucket=None,
            lane=EXPRESS,
        )
        # Behind the request on the same lane, so that weights travel while the caller loads its batch.
        self._pulling = self._communicator.submit_call(
            self._pull, list(self._weights.values()), phase="pull", bucket=None, lane=EXPRESS
        )
        self._communicator.wait([asked])
        assert self._answer is not None
        return self._answer

    def take_over(self) -> Tensor | None:
        """Copy the weights that came into the parameters.

        Returns:
            (bytes,) uint8 of the committed buffers where they are new, else None.
        """
        assert self._pulling is not None, "ask first"
        self._communicator.wait([self._pulling])
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for share, came in zip(self._pulled, self._came, strict=True):
            for bucket in share.buckets if came else ():
                targets += [self._buckets.parameters[n].detach() for n in bucket.members]
                sources += self._buckets.views(bucket, self._weights[bucket.number])
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(targets, sources)
        for share, news in zip(self._pulled, self._news, strict=True):
            store(list(zip(share.tables.values(), news, strict=False)))
        return self._left if self._came[0] else None

    def push(
        self,
        push: PushHeader,
        versions: Sequence[int],
        extras: Sequence[Tensor],
        tables: Sequence[SparseRows],
    ) -> None:
        """Send the gradient in the buckets' first rows, which belong to the lane until `pushed`.

        Args:
            versions: of each server's weights that it was computed on; where they have backups all go by server 0's.
            extras: (bytes,) uint8 of buffers and of names, where the push says that they come.
            tables: the gradient's rows of each table.
        """
        self.pushed()
        # Only now: until the push before was counted, the lane was still sending from these rows.
        rows = [b.row(0) for b in self._buckets.buckets]

        def act(_: Scratch, transport: Transport) -> None:
            # Server 0 last: its set of taken items is the data position, and what it commits is settled.
            for server in reversed(range(len(self._servers))):
                own = [(table, tables[k]) for k, table in self._pushed[server].tables.items()]
                # Versions are counted by each server on its own; with backups all follow one order.
                own_push = replace(push, version=versions[0 if self._layout.starts else server])
                self._deliver(transport, server, own_push, rows, [*extras, packed(own)])

        self._pushing = self._communicator.submit_call(act, rows, phase="push", bucket=None)

    def pushed(self) -> None:
        """Wait until the last push is counted, or refused."""
        if self._pushing is not None:
            self._communicator.wait([self._pushing])
            self._pushing = None

    def leave(self) -> None:
        """Tell all servers that nothing more comes from this worker in this loop."""
        self.pushed()
        farewell, last = self._layout.leaving().encode(), PullRequest(RequestKind.LEAVE, -1).encode()

        def act(_: Scratch, transport: Transport) -> None:
            for rank in self._servers:
                transport.isend(farewell, rank, PUSH).wait()
                transport.isend(last, rank, ASK).wait()

        self._communicator.wait([self._communicator.submit_call(act, [], phase="leave", bucket=None)])

    def _ask(self, transport: Transport, ask: PullRequest) -> None:
        self._answer = self._question(transport, 0, ask)
        self._came = [self._answer.fresh, *(False for _ in self._servers[1:])]

    def _question(self, transport: Transport, server: int, ask: PullRequest) -> PullReply:
        transport.isend(ask.encode(), self._servers[server], ASK).wait()
        words = self._layout.answer()
        transport.irecv(words, self._servers[server], ANSWER).wait()
        return PullReply.decode(words)

    def _pull(self, _: Scratch, transport: Transport) -> None:
        first = self._answer
        assert first is not None
        self._have[0] = first.version
        self._news = [[] for _ in self._servers]
        if first.fresh:
            self._receive(transport, 0, first)
            if self._layout.buffers:
                transport.irecv(self._left, self._servers[0], ANSWER).wait()
        # Without an item and with nothing new at server 0 there is nothing to compute: the others are not
        # asked.
        for server in range(1, len(self._servers) if first.item >= 0 or first.fresh else 1):
            ask = PullRequest(RequestKind.WEIGHTS, self._have[server], first.version)
            answer = self._question(transport, server, ask)
            self._have[server], self._came[server] = answer.version, answer.fresh
            if answer.fresh:
                self._receive(transport, server, answer)

    def _receive(self, transport: Transport, server: int, answer: PullReply) -> None:
        share = self._pulled[server]
        for bucket in share.buckets:
            transport.irecv(self._weights[bucket.number], self._servers[server], ANSWER).wait()
        tables = list(share.tables.values())
        counts = [answer.rows[place] for place in share.tables]
        body = torch.empty(body_bytes(counts, tables), dtype=torch.uint8)
        if body.numel():
            transport.irecv(body, self._servers[server], ANSWER).wait()
        self._news[server] = unpacked(body, counts, tables)

    def _deliver(
        self,
        transport: Transport,
        server: int,
        push: PushHeader,
        rows: Sequence[Tensor],
        extras: Sequence[Tensor],
    ) -> None:
        rank = self._servers[server]
        sent = [transport.isend(push.encode(), rank, PUSH)]
        sent += [transport.isend(rows[b.number], rank, PUSH) for b in self._pushed[server].buckets]
        sent += [transport.isend(extra, rank, PUSH) for extra in extras if extra.numel()]
        for work in sent:
            work.wait()
        # Whatever the verdict: the push is over, and its rows are free.
        transport.irecv(self._layout.receipt(), rank, RECEIPT).wait()
