"""The costs of a generation's links, measured once by all its members together, by which schedules are chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import torch

from ringleader.comm.buckets import Bucket
from ringleader.comm.choosing.probe import ProbeSender, probe
from ringleader.comm.choosing.trial import sums, try_out
from ringleader.comm.communicator import Communicator
from ringleader.comm.schedules import RankPart
from ringleader.comm.simulator import ClusterCosts
from ringleader.exchange.side_channel import BUCKETS, SideChannel


@dataclass(frozen=True, slots=True)
class CostMeasurement:
    """One member's part in the measurement.

    Attributes:
        groups: the ranks of each node.
        canonical: whether only canonical schedules are tried.
    """

    rank: int
    groups: tuple[tuple[int, ...], ...]
    communicator: Communicator
    side: SideChannel
    canonical: bool

    def costs(
        self, known: ClusterCosts | None, buckets: Sequence[Bucket], part: Callable[[Bucket], RankPart]
    ) -> ClusterCosts:
        """The costs that all members know already, else those that they measure now."""
        # Asked by all, also by a member that knows nothing.
        if self._all_know(known) and known is not None:
            return known
        lines = ProbeSender(self.side.ping_pong, self.side.shift, self.side.all_reduce)
        return self._tried(probe(self.rank, self.groups, self.communicator.size, lines), buckets, part)

    def _all_know(self, known: ClusterCosts | None) -> bool:
        """Whether all members know the same costs."""
        # A break may have come when some had measured and others not: then all of them measure.
        signs = torch.zeros(self.communicator.size, dtype=torch.float64)
        # Zero is the sign of knowing nothing, so that of costs is never zero.
        signs[self.rank] = 0 if known is None else 1 + crc32(repr(known).encode())
        first, *others = self.side.all_reduce(signs).tolist()
        return bool(first) and all(sign == first for sign in others)

    def _tried(
        self, costs: ClusterCosts, buckets: Sequence[Bucket], part: Callable[[Bucket], RankPart]
    ) -> ClusterCosts:
        """The costs with the winners of a trial, which settles once what the forecasts leave open, with the sums of a
        batch in which all shards have rows."""
        like = buckets[0].like
        with self.communicator.as_one("trial"):
            return try_out(
                # A trial is for one element size: buckets of another type go by the forecast.
                (part(b) for b in buckets if b.like.dtype == like.dtype),
                costs,
                canonical=self.canonical,
                element_bytes=like.element_size(),
                way=lambda tried: sums(self.communicator, tried, like, BUCKETS),
                tell=self.side.all_reduce,
            )
