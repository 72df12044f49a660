"""The transfer of gradients to the servers and of weights back: by messages, or in memory that all members share.

Every bucket is updated by its owner among the servers, or by all of them. A push leaves the canonical sum of all
partial sums in row 0 of whoever updates it; a publication brings the weights to everybody else, who takes over all of
them or none.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from ringleader.comm.buckets import Bucket, Buckets
from ringleader.comm.communicator import BULK, Communicator, Ticket
from ringleader.comm.schedules import Add, RankPart, Step
from ringleader.comm.transports import SharedSums
from ringleader.exchange.routes import Routes
from ringleader.exchange.side_channel import BUCKETS

PartOf = Callable[[Bucket], RankPart]
Route = Callable[[RankPart, int], Iterable[Step]]


class ServerTransfer(Protocol):
    """One member's end of the transfers, whatever its role."""

    def push(self, bucket: Bucket, part: RankPart) -> Ticket:
        """Start this member's part in the sum of a bucket."""

    def publish(self, part_of: PartOf) -> None:
        """Send the weights of the own buckets and take over those of all others. Raises ExchangeBroken."""


class MessageTransfer:
    """Implements ServerTransfer over any transport."""

    def __init__(self, communicator: Communicator, buckets: Buckets, routes: Routes) -> None:
        self._communicator = communicator
        self._buckets = buckets
        self._routes = routes
        self._own, self._foreign = _by_source(buckets, communicator.rank, routes)
        self._known: dict[tuple[str, int, frozenset[int]], tuple[tuple[Step, ...], int]] = {}

    def push(self, bucket: Bucket, part: RankPart) -> Ticket:
        return self._submit(bucket, part, self._routes.push, "push")

    def publish(self, part_of: PartOf) -> None:
        for bucket in self._own:
            self._buckets.load_parameters(bucket)
        self._communicator.wait(
            [self._submit(b, part_of(b), self._routes.pull, "publish") for b in self._buckets.buckets]
        )
        # Only once every bucket has come: weights are taken over all at once or not at all.
        self._buckets.store_parameters(self._foreign)

    def _submit(self, bucket: Bucket, part: RankPart, route: Route, phase: str) -> Ticket:
        key = (phase, bucket.number, part.tree.present)
        if key not in self._known:
            steps = tuple(route(part, bucket.owner))
            # A collector gathers its node's sums in rows beyond its own, which have to be there.
            self._known[key] = steps, max(len(part.rows[part.rank]), _rows_named(steps))
        steps, count = self._known[key]
        rows = [bucket.row(k) for k in range(count)]
        tag = BUCKETS + 2 * bucket.number
        return self._communicator.submit(steps, rows, tag=tag, phase=phase, bucket=bucket.number, lane=BULK)


class SharedMemoryTransfer:
    """Implements ServerTransfer where all members share memory: a server adds what lies in the workers' rows, its
    parameters live where everybody reads them, and nothing is sent.

    A server changes its weights only once everybody has pushed the next step, and so has taken over these.

    Args:
        board: has two slots for each bucket: for what workers offer, and for the weights.
        workers: the number of workers: ranks below it have rows to offer.
    """

    def __init__(
        self, communicator: Communicator, buckets: Buckets, routes: Routes, board: SharedSums, *, workers: int
    ) -> None:
        self._communicator = communicator
        self._buckets = buckets
        self._routes = routes
        self._board = board
        self._workers = workers
        self._own, self._foreign = _by_source(buckets, communicator.rank, routes)
        for bucket in self._own:
            buckets.settle(bucket)
        self._found: dict[int, Tensor] = {}
        self._taken = [buckets.parameters[n] for b in self._foreign for n in b.members]
        self._targets = [parameter.detach() for parameter in self._taken]

    def push(self, bucket: Bucket, part: RankPart) -> Ticket:
        act = _nothing
        if self._routes.source(part.rank, bucket.owner) == part.rank:
            act = self._summing(bucket, part)
        elif part.rank < self._workers:
            act = self._offering(bucket, part)
        return self._communicator.submit_act(act, phase="push", bucket=bucket.number)

    def publish(self, part_of: PartOf) -> None:
        for bucket in self._own:
            self._board.offer(self._weights_slot(bucket), [self._address(self._buckets.settle(bucket))])
        # Behind the own offers: servers that waited for each other's weights first would wait for ever.
        self._communicator.wait([self._communicator.submit_act(self._find, phase="publish", bucket=None)])
        sources = [view for b in self._foreign for view in self._buckets.views(b, self._found[b.number])]
        pairs = zip(self._taken, self._targets, strict=True)
        if any(parameter.data_ptr() != target.data_ptr() for parameter, target in pairs):  # by `.data = …`
            self._targets = [parameter.detach() for parameter in self._taken]
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(self._targets, sources)

    def _summing(self, bucket: Bucket, part: RankPart) -> Callable[[], None]:
        into = bucket.row(0)
        address = self._address(into)
        return lambda: self._routes.sum_in_place(
            self._board, bucket.number, part, bucket.owner, (into, address)
        )

    def _offering(self, bucket: Bucket, part: RankPart) -> Callable[[], None]:
        # The rows change places here, on the thread that fills them; only the copying is left to the lane.
        moves = bucket.move_home(len(part.rows[part.rank]))

        def offer() -> None:
            for row, home in moves:
                if row is not home:
                    home.copy_(row)
            self._board.offer(bucket.number, [self._address(home) for _, home in moves])

        return offer

    def _find(self) -> None:
        for bucket in self._foreign:
            slot, peer = (
                self._weights_slot(bucket),
                self._routes.source(self._communicator.rank, bucket.owner),
            )
            self._found[bucket.number] = self._board.offered(slot, peer, bucket.length, bucket.like.dtype)

    def _weights_slot(self, bucket: Bucket) -> int:
        return len(self._buckets.buckets) + bucket.number

    def _address(self, tensor: Tensor) -> tuple[int, int, int]:
        assert self._buckets.arena is not None, "in place means that the buckets have an arena"
        return self._buckets.arena.address(tensor)


def _by_source(buckets: Buckets, rank: int, routes: Routes) -> tuple[list[Bucket], list[Bucket]]:
    """The buckets whose weights this member makes (none for a worker), and all others."""
    own = [b for b in buckets.buckets if routes.source(rank, b.owner) == rank]
    return own, [b for b in buckets.buckets if routes.source(rank, b.owner) != rank]


def _rows_named(steps: Iterable[Step]) -> int:
    """The number of rows that the steps need; row 0 is always there."""
    return 1 + max((place for step in steps for place in _places(step)), default=0)


def _places(step: Step) -> tuple[int, ...]:
    match step:
        case Add():
            return step.into, step.source
        case _:
            return (step.place,)


def _nothing() -> None:
    """Do nothing: a server has no part in another's bucket."""
