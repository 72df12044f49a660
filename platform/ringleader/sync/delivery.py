"""How gradients get to the servers and weights come back: by messages, or in memory that all members share.

Every bucket has one owner among the servers. A push leaves the canonical sum of everybody's partial sums in the owner's
row 0; a publication brings the owner's weights to everybody else, who takes over all of them or none.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from ringleader.comm.buckets import Bucket, Buckets
from ringleader.comm.communicator import BULK, Communicator, Ticket
from ringleader.comm.schedules import Part, Step
from ringleader.comm.schedules.star import pull, push
from ringleader.comm.transports import Board
from ringleader.sync.side import BUCKETS

PartOf = Callable[[Bucket], Part]


class Delivery(Protocol):
    """One member's end, whatever its role."""

    def push(self, bucket: Bucket, part: Part) -> Ticket:
        """Start this member's part in the sum of a bucket."""

    def publish(self, part_of: PartOf) -> None:
        """Send the weights of the own buckets and take over those of all others. Raises ExchangeBroken."""


class Messages:
    """Implements Delivery over any transport.

    Args:
        first: the rank of server 0.
    """

    def __init__(self, communicator: Communicator, buckets: Buckets, first: int) -> None:
        self._communicator = communicator
        self._buckets = buckets
        self._first = first

    def push(self, bucket: Bucket, part: Part) -> Ticket:
        return self._submit(bucket, part, push(part, self._first + bucket.owner), "push")

    def publish(self, part_of: PartOf) -> None:
        own, foreign = _by_owner(self._buckets, self._communicator.rank - self._first)
        for bucket in own:
            self._buckets.load_parameters(bucket)
        self._communicator.wait(
            [
                self._submit(b, part_of(b), pull(part_of(b), self._first + b.owner), "publish")
                for b in self._buckets.buckets
            ]
        )
        self._buckets.store_parameters(foreign)

    def _submit(self, bucket: Bucket, part: Part, steps: Iterable[Step], phase: str) -> Ticket:
        rows = [bucket.row(k) for k in range(max(1, len(part.rows[part.rank])))]
        tag = BUCKETS + 2 * bucket.number
        return self._communicator.submit(
            tuple(steps), rows, tag=tag, phase=phase, bucket=bucket.number, lane=BULK
        )


class InPlace:
    """Implements Delivery where all members share memory: a server adds what lies in the workers' rows, its parameters
    live where everybody reads them, and nothing is sent.

    A server changes its weights only once everybody has pushed the next step, and so has taken over these.

    Args:
        board: with two slots for each bucket: for what workers offer, and for the owner's weights.
    """

    def __init__(self, communicator: Communicator, buckets: Buckets, first: int, board: Board) -> None:
        self._communicator = communicator
        self._buckets = buckets
        self._first = first
        self._board = board
        self._own, self._foreign = _by_owner(buckets, communicator.rank - first)
        for bucket in self._own:
            buckets.settle(bucket)
        self._found: dict[int, Tensor] = {}
        self._targets = [buckets.parameters[n].detach() for b in self._foreign for n in b.members]

    def push(self, bucket: Bucket, part: Part) -> Ticket:
        act = _nothing
        if part.rank == self._first + bucket.owner:
            act = self._gathering(bucket, part)
        elif part.rank < self._first:
            act = self._offering(bucket, part)
        return self._communicator.submit_act(act, phase="push", bucket=bucket.number)

    def publish(self, part_of: PartOf) -> None:
        for bucket in self._own:
            self._board.offer(self._weights_slot(bucket), [self._address(self._buckets.settle(bucket))])
        self._communicator.wait([self._communicator.submit_act(self._find, phase="publish", bucket=None)])
        sources = [view for b in self._foreign for view in self._buckets.views(b, self._found[b.number])]
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(self._targets, sources)

    def _gathering(self, bucket: Bucket, part: Part) -> Callable[[], None]:
        into = bucket.row(0)
        return lambda: self._board.gather(bucket.number, part, into)

    def _offering(self, bucket: Bucket, part: Part) -> Callable[[], None]:
        moves = bucket.move_home(len(part.rows[part.rank]))

        def offer() -> None:
            for row, home in moves:
                if row is not home:
                    home.copy_(row)
            self._board.offer(bucket.number, [self._address(home) for _, home in moves])

        return offer

    def _find(self) -> None:
        for bucket in self._foreign:
            slot, peer = self._weights_slot(bucket), self._first + bucket.owner
            self._found[bucket.number] = self._board.offered(slot, peer, bucket.length, bucket.like.dtype)

    def _weights_slot(self, bucket: Bucket) -> int:
        return len(self._buckets.buckets) + bucket.number

    def _address(self, tensor: Tensor) -> tuple[int, int, int]:
        assert self._buckets.arena is not None, "in place means that the buckets have an arena"
        return self._buckets.arena.address(tensor)


def _by_owner(buckets: Buckets, server: int) -> tuple[list[Bucket], list[Bucket]]:
    """The buckets of this server (none for a worker, whose number is negative), and all others."""
    return (
        [b for b in buckets.buckets if b.owner == server],
        [b for b in buckets.buckets if b.owner != server],
    )


def _nothing() -> None:
    """A server has no part in another's bucket."""
