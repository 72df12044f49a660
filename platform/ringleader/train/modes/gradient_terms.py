"""The terms of the sum that is a batch's gradient, and whose they are.

A term is the gradient of a logical shard's slice, or, where no bits are promised, of all slices of a worker, which run
as one.
"""

from ringleader.elastic.plan import owned
from ringleader.train.generation.member import Member
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.order.shard_spans import present_shards


class GradientTerms:
    """The terms as one member sees them, in the generation that runs."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def shards(self, term: int) -> range:
        """The logical shards of a term."""
        if self._member.same_bits:
            return range(term, term + 1)
        return owned(term, self._member.term_count, self._member.spec.shards)

    def present(self, epoch: Epoch, offset: int) -> list[int]:
        """The terms with rows in a batch, ascending."""
        present, terms = (
            present_shards(epoch.batch_rows(offset), epoch.shards),
            range(self._member.term_count),
        )
        if self._member.same_bits:
            return sorted(present)
        return [term for term in terms if not present.isdisjoint(self.shards(term))]

    def mine(self, epoch: Epoch, offset: int) -> list[int]:
        """Those of them that this worker computes."""
        generation = self._member.generation
        own = generation.plan.shards_of(generation.rank) if self._member.same_bits else (generation.rank,)
        return [term for term in self.present(epoch, offset) if term in own]
