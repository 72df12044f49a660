"""Finished replicas of a running round: kept until it commits, so that a loss costs only what the lost worker had."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ringleader.comm.objects import packed, unpacked
from ringleader.elastic import Plan
from ringleader.train.body.optimizer_settings import Said
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.generation.generation import Generation
from ringleader.train.modes.local_sgd.round_attributes import LEFT_TYPES, LeftAttributes


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica's part in its round.

    Attributes:
        moves: the gradients of the outer step's carriers, by number.
        reports: of its slices, by their place in the control word.
        left: (bytes,) uint8 of the buffers that it left, if they are the ones that count.
        attributes: those that its optimizers left.
        said: the settings that the loop's body made in its slices, if it has rows in all batches of the round.
    """

    moves: Mapping[int, Tensor]
    reports: Mapping[int, SliceReport]
    left: Tensor | None
    attributes: LeftAttributes
    said: Said = (False, None)


@dataclass(slots=True)
class FinishedReplicas:
    """This member's finished replicas, of one round.

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
        """The finished replicas of that round, by shard."""
        return self._finished if transaction == self.transaction else {}

    def forget(self) -> None:
        """Drop all replicas: the round is committed, or is trained again."""
        self._finished = {}

    def hand_over(self, generation: Generation) -> None:
        """Send replicas, when a generation begins, to the members that own their shards now. All members take part.

        Raises:
            ExchangeBroken: replicas that were received, or not sent yet, are kept.
        """
        plan, me, exchange = generation.plan, generation.rank, generation.exchange
        if plan.start_transaction != self.transaction:
            self.transaction, self._finished = plan.start_transaction, {}
        held = torch.zeros(plan.world, plan.shards, dtype=torch.float64)
        # Each member writes its own row: summed, it is the table of who has which.
        held[me, list(self._finished)] = 1.0
        # All members derive the same ways in the same order, so that sends and receives pair up.
        for shard, donor, owner in _ways(exchange.all_reduce(held), plan):
            if me == donor:
                exchange.send_state(owner, packed(self._finished[shard], exchange.seal))
            elif me == owner:
                received = exchange.receive_state(donor)
                self._finished[shard] = unpacked(received, exchange.seal, Replica, SliceReport, *LEFT_TYPES)
        # Only now: until here a member may have to send replicas of shards that it lost.
        own = plan.shards_of(me)
        self._finished = {shard: replica for shard, replica in self._finished.items() if shard in own}


def _ways(held: Tensor, plan: Plan) -> Iterator[tuple[int, int, int]]:
    """(shard, donor, owner) for every finished replica that its owner lacks; (world, shards) who has which."""
    for owner in range(plan.world):
        for shard in plan.shards_of(owner):
            holders = held[:, shard].nonzero()[:, 0].tolist()
            if holders and owner not in holders:
                yield shard, holders[0], owner
