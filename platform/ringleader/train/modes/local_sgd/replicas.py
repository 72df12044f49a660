"""Finished replicas of a running round: kept until it commits, so that a loss costs only what the lost worker had."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ringleader.comm.objects import packed, unpacked
from ringleader.elastic import Plan
from ringleader.exchange import Exchange
from ringleader.train.body.optimizer_settings import Said
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.ports import Seat


@dataclass(frozen=True, slots=True)
class Replica:
    """What a replica brings to its round.

    Attributes:
        moves: the gradients of the outer step's carriers, by number.
        reports: of its slices, by their place in the control word.
        left: (bytes,) uint8 of the buffers that it left, where it is they that count.
        said: what the loop's body has set in its slices, where it was in all batches of the round.
    """

    moves: Mapping[int, Tensor]
    reports: Mapping[int, SliceReport]
    left: Tensor | None
    said: Said = (False, None)


@dataclass(slots=True)
class FinishedReplicas:
    """This member's, of one round.

    Attributes:
        transaction: the round's number among the applied ones.
    """

    transaction: int = -1
    _finished: dict[int, Replica] = field(default_factory=dict)

    def keep(self, transaction: int, shard: int, replica: Replica) -> None:
        if transaction != self.transaction:
            self.transaction, self._finished = transaction, {}
        self._finished[shard] = replica

    def of(self, transaction: int) -> Mapping[int, Replica]:
        """By shard, those of that round."""
        return self._finished if transaction == self.transaction else {}

    def forget(self) -> None:
        """The round is committed."""
        self._finished = {}

    def hand_over(self, exchange: Exchange, seat: Seat) -> None:
        """A generation begins: replicas go to whom their shards belong now. All members take part.

        Raises:
            ExchangeBroken: what was received is kept, what was not handed over is.
        """
        plan, me = seat.plan, seat.rank
        if plan.start_step != self.transaction:
            self.transaction, self._finished = plan.start_step, {}
        held = torch.zeros(plan.world, plan.shards, dtype=torch.float64)
        held[me, list(self._finished)] = 1.0
        for shard, donor, owner in _ways(exchange.all_reduce(held), plan):
            if me == donor:
                exchange.send_state(owner, packed(self._finished[shard], exchange.seal))
            elif me == owner:
                received = exchange.receive_state(donor)
                self._finished[shard] = unpacked(received, exchange.seal, Replica, SliceReport)
        own = plan.shards_of(me)
        self._finished = {shard: replica for shard, replica in self._finished.items() if shard in own}


def _ways(held: Tensor, plan: Plan) -> Iterator[tuple[int, int, int]]:
    """(shard, donor, owner) for every finished replica that its owner lacks; (world, shards) who has which."""
    for owner in range(plan.world):
        for shard in plan.shards_of(owner):
            holders = held[:, shard].nonzero()[:, 0].tolist()
            if holders and owner not in holders:
                yield shard, holders[0], owner
