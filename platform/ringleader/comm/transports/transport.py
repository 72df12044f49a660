"""The point-to-point seam: tensors between two ranks of one generation."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ringleader.comm.schedules.schedule import RankPart
from ringleader.comm.seal import Seal
from ringleader.comm.segments import Address

Messages = Sequence[tuple[Tensor, int]]
"""(values, peer) in order."""


class Work(Protocol):
    """A transfer under way."""

    def wait(self) -> None:
        """Block until done. Raises ExchangeBroken when the peer is lost, the deadline passed, or `abort` was called."""


class SharedSums(Protocol):
    """Sums in the members' shared memory."""

    def reduce(self, slot: int, part: RankPart, rows: Sequence[Tensor], addresses: Sequence[Address]) -> None:
        """Leave the canonical sum of all members' rows in row 0 of every member. Raises ExchangeBroken."""

    def offer(self, slot: int, addresses: Sequence[Address]) -> None:
        """Let peers read the memory at these addresses. It stays unchanged until all of them must have read it."""

    def gather(self, slot: int, part: RankPart, into: Tensor) -> None:
        """Leave the canonical sum of the rows that peers offer in `into`. Raises ExchangeBroken."""

    def spread(self, slot: int, part: RankPart, into: tuple[Tensor, Address], owners: Sequence[int]) -> None:
        """Leave the canonical sum of the rows that peers offer in `into` of all owners, who all call this and share the
        work. Raises ExchangeBroken."""

    def offered(self, slot: int, peer: int, length: int, dtype: torch.dtype) -> Tensor:
        """The (length,) memory that `peer` offers next in that slot. Raises ExchangeBroken."""


class GroupedMessages(Protocol):
    """Messages between devices that are handed over together."""

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Transfer all messages of a round at once; those of a pair match in their order. Raises ExchangeBroken."""


class Transport(Protocol):
    """Ordered, tagged point-to-point transfers among the members of one generation.

    A pair's transfers with the same tag match in the order of their calls. Tensors are contiguous and stay untouched
    until `wait` returns.
    """

    rank: int
    size: int
    seal: Seal
    """The seal that objects between these members carry."""
    shared: bool
    """Whether all members share memory, so that `board` is not None."""
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each node; empty where all are on one, or it is not known."""

    @property
    def over(self) -> str:
        """Why this member has ended the generation for itself; empty before."""

    @property
    def together(self) -> "GroupedMessages | None":
        """The messages between devices; None where tensors on devices have to go through the host."""

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    def native_all_reduce(self, tensor: Tensor) -> Work:
        """The library's own sum over all ranks, in place."""

    def board(self, slots: int, rows: int) -> "SharedSums | None":
        """A board on which up to `rows` rows a member of `slots` buckets are summed in place, if the members share
        memory; else None. All members ask for the same one at the same moment: nothing is in progress on the one
        before, which then ends."""

    def abort(self) -> None:
        """End this generation, from any thread. Waits end with ExchangeBroken as soon as the library lets them: over
        gloo a transfer that is half done may wait on until its deadline."""

    def close(self) -> None:
        """Release the connections; idempotent."""
