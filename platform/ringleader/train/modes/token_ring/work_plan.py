"""The items that a member of a token ring computes in one stretch of a loop, alone or with its node group."""

from collections.abc import Iterator, Sequence

from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.token_ring.regeneration import ComputeRound, RegeneratedToken, rounds
from ringleader.train.rows.slices import Prefetched, Slice


class WorkPlan:
    """One member's plan for one stretch.

    Args:
        group_ranks: the ranks that compute together, this one among them.
        regenerated: what the tokens hold as the stretch begins.
    """

    def __init__(
        self,
        member: Member,
        loop: BatchLoop,
        group_ranks: Sequence[int],
        regenerated: Sequence[RegeneratedToken],
    ) -> None:
        generation = member.generation
        self._loop = loop
        self._first_step = member.progress.calls.base
        self._group_ranks = group_ranks
        self._regenerated = regenerated
        self._own = generation.plan.shards_of(generation.rank)
        self._shards = sorted(shard for rank in group_ranks for shard in generation.plan.shards_of(rank))

    def rounds(self) -> Iterator[ComputeRound]:
        """The rounds that this member, or its node group, has to compute; all of a group come to the same."""
        epoch, together = self._loop.epoch, len(self._group_ranks) > 1
        return rounds(self._regenerated, self._shards, epoch.shards, epoch.steps, together=together)

    def mine(self, doing: ComputeRound) -> list[int]:
        """The shards of a round that this member computes."""
        return [shard for shard in doing.shards if shard in self._own]

    def slice(self, offset: int, shard: int) -> Slice:
        return Slice(("step", self._first_step + offset, shard), shard, self._loop.epoch.rows(offset, shard))

    def batches(self) -> Prefetched:
        """The batches of all slices of this member, in their order."""
        pieces = (self.slice(doing.offset, shard) for doing in self.rounds() for shard in self.mine(doing))
        return self._loop.batches(pieces)
