"""A server's message threads where items are leased: two for each worker, one for requests and one for pushes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ringleader.comm.buckets import Bucket
from ringleader.comm.communicator import EXPRESS, Communicator, Ticket
from ringleader.comm.executor import Scratch
from ringleader.comm.rows import SparseRows
from ringleader.comm.transports import Transport
from ringleader.exchange.sparse_messages import body_bytes, unpacked
from ringleader.train.modes.async_server.lease_queue import PushVerdict
from ringleader.train.modes.async_server.messages import (
    ANSWER,
    ASK,
    END,
    PUSH,
    RECEIPT,
    TAKEN,
    MessageLayout,
    PullReply,
    PullRequest,
    PushHeader,
    RequestKind,
)


@dataclass(frozen=True, slots=True)
class PushExtras:
    """The tensors that may follow a gradient: (bytes,) uint8 of the buffers that the forward left, and of the metrics'
    names; the rows of each of this server's tables; (bytes,) uint8 of the buffers that the forward began with."""

    left: Tensor | None
    names: Tensor | None
    rows: Sequence[SparseRows] = ()
    start: Tensor | None = None

    @classmethod
    def of(cls, push: PushHeader, layout: MessageLayout) -> "PushExtras":
        """Memory for the extras that the header announces."""
        start, left = (
            torch.empty(layout.buffers, dtype=torch.uint8) if push.buffers and wanted else None
            for wanted in (layout.starts, True)
        )
        names = torch.empty(push.names, dtype=torch.uint8) if push.names else None
        return cls(left, names, start=start)

    @property
    def memory(self) -> list[Tensor]:
        return [part for part in (self.start, self.left, self.names) if part is not None]


@dataclass(slots=True)
class QueuedPush:
    """A push from the worker of that rank, waiting to be counted; `verdict` is None until it is."""

    worker: int
    push: PushHeader
    rows: list[Tensor]
    extras: PushExtras
    verdict: PushVerdict | None = None

    def decide(self, verdict: PushVerdict) -> None:
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A reply and the tensors that follow the weights, which nobody changes any more.

    Attributes:
        tables: (bytes,) uint8 of new rows of this server's tables.
        buffers: (bytes,) uint8 of the committed buffers.
    """

    answer: PullReply
    tables: Tensor | None = None
    buffers: Tensor | None = None


Check = Callable[[], None]
"""Raises ExchangeBroken once the generation is over."""


class RequestHandler(Protocol):
    """The server's decisions. Called from many threads; each call may block until there is an answer. It raises what
    `check` raises, and calls it before anything else: a thread of a generation that is over changes nothing."""

    def answer(self, worker: int, ask: PullRequest, rows: Sequence[Tensor], check: Check) -> ServerReply:
        """The reply to the worker of that rank. Fresh weights are in `rows` then."""

    def take(
        self, worker: int, push: PushHeader, rows: list[Tensor], extras: PushExtras, check: Check
    ) -> PushVerdict:
        """Count the gradient of the worker of that rank in `rows`, which are the handler's from now on."""

    def confirm(self, entry: int, check: Check) -> None:
        """Record that server 0 has taken this item, or says `UPDATE` or `CLOSE`."""

    def departed(self) -> None:
        """Record that a thread has ended, well or not."""


class ReceiveBuffers:
    """Reusable memory for incoming gradients: a list of flat tensors, one for each bucket of this server."""

    def __init__(self, part: Sequence[Bucket]) -> None:
        self._part = part
        self._free: list[list[Tensor]] = []

    def take(self) -> list[Tensor]:
        return self._free.pop() if self._free else [b.like.new_empty(b.length) for b in self._part]

    def give_back(self, rows: list[Tensor]) -> None:
        self._free.append(rows)


class ServerEndpoint:
    """One server's endpoint in one loop of one generation.

    Args:
        shown: the buckets whose weights workers pull.
        tables: of this server, by their place among all tables.
        rows: memory for the gradients of the buckets that this server updates.
        number: among the servers; server 0 leases.
        workers: how many ranks lease.
        servers: how many there are; the others wait for what server 0 tells them. 1: they do not wait.
        acknowledged: server 0 waits until they have heard it.
    """

    def __init__(
        self,
        communicator: Communicator,
        shown: Sequence[Bucket],
        tables: Mapping[int, Tensor],
        rows: ReceiveBuffers,
        layout: MessageLayout,
        *,
        number: int,
        workers: int,
        servers: int,
        acknowledged: bool = False,
    ) -> None:
        self._communicator = communicator
        self._shown = shown
        self._tables = tables
        self._rows = rows
        self._layout = layout
        self._first = number == 0
        self._workers = workers
        self._followers = range(workers + 1, workers + servers)
        self._acknowledged = acknowledged

    def serve(self, handler: RequestHandler) -> list[Ticket]:
        """Start the threads; each ends when its worker, or server 0, has nothing more to send."""
        # Two for each worker: a push is still on its way while the worker asks for its next item.
        threads = [
            self._communicator.beside(partial(act, handler, worker), phase=phase)
            for worker in range(self._workers)
            for act, phase in ((self._asks, "lease"), (self._pushes, "push"))
        ]
        if self._followers and not self._first:
            threads.append(self._communicator.beside(partial(self._confirmations, handler), phase="taken"))
        return threads

    def tell(self, entry: int) -> list[Ticket]:
        """Send an entry from server 0: an item that it has taken, `UPDATE`, `CLOSE` or `END`."""

        def act(_: Scratch, transport: Transport) -> None:
            word, heard = torch.tensor([entry], dtype=torch.float64), torch.empty(1, dtype=torch.float64)
            # A list: all are on their way before one is waited for.
            for work in [transport.isend(word, rank, TAKEN) for rank in self._followers]:
                work.wait()
            # A follower's thread ends at END, without an answer.
            for rank in self._followers if self._acknowledged and entry != END else ():
                transport.irecv(heard, rank, TAKEN).wait()

        if not self._followers:
            return []
        return [self._communicator.submit_call(act, [], phase="taken", bucket=None, lane=EXPRESS)]

    def _asks(self, handler: RequestHandler, worker: int, transport: Transport) -> None:
        # Each thread's own: replies to several workers are on their way at once.
        weights = [b.like.new_empty(b.length) for b in self._shown]
        words = self._layout.ask()
        try:
            while True:
                transport.irecv(words, worker, ASK).wait()
                ask = PullRequest.decode(words)
                if ask.wish is RequestKind.LEAVE:
                    return
                reply = handler.answer(worker, ask, weights, self._communicator.check)
                sent = [transport.isend(reply.answer.encode(), worker, ANSWER)]
                if reply.answer.fresh:
                    rest = (reply.tables, reply.buffers if self._first else None)
                    parts = [*weights, *(part for part in rest if part is not None and part.numel())]
                    sent += [transport.isend(part, worker, ANSWER) for part in parts]
                # Before the next reply is written into `weights`.
                for work in sent:
                    work.wait()
        finally:
            handler.departed()

    def _pushes(self, handler: RequestHandler, worker: int, transport: Transport) -> None:
        words, receipt = self._layout.push(), self._layout.receipt()
        try:
            while True:
                transport.irecv(words, worker, PUSH).wait()
                # A copy: the header's tensors are views, and `words` receives the next one.
                push = PushHeader.decode(words.clone(), self._layout)
                if push.leaving:
                    return
                rows = self._rows.take()
                extras = PushExtras.of(push, self._layout)
                counts = [push.rows[place] for place in self._tables]
                tables = list(self._tables.values())
                body = torch.empty(body_bytes(counts, tables), dtype=torch.uint8)
                for memory in (*rows, *extras.memory, *([body] if body.numel() else [])):
                    transport.irecv(memory, worker, PUSH).wait()
                extras = replace(extras, rows=unpacked(body, counts, tables))
                receipt.fill_(handler.take(worker, push, rows, extras, self._communicator.check))
                transport.isend(receipt, worker, RECEIPT).wait()
        finally:
            handler.departed()

    def _confirmations(self, handler: RequestHandler, transport: Transport) -> None:
        word = torch.empty(1, dtype=torch.float64)
        try:
            while True:
                transport.irecv(word, self._workers, TAKEN).wait()
                if word == END:
                    return
                handler.confirm(int(word), self._communicator.check)
                if self._acknowledged:
                    transport.isend(word, self._workers, TAKEN).wait()
        finally:
            handler.departed()
