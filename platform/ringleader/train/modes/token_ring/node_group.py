"""Members that compute an item together: the conductor calls, the followers answer, and their gradients are added.

```
conductor   call, weights ─►  forward, backward (where it has rows)   ◄─ answers   sum of gradients ─► one step
followers   call, weights ◄─  forward, backward                       ─► answer    gradient
```

All of it stays among the members of a node group; only the conductor's pending updates leave it, with the tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from ringleader.comm.communicator import EXPRESS, Communicator
from ringleader.comm.executor import Scratch
from ringleader.comm.objects import receive, sent
from ringleader.comm.schedules import Receive, Send, Step
from ringleader.comm.transports import Transport
from ringleader.exchange.side_channel import BUCKETS, sum_steps
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.gossip import Gossip, GossipPeer, Heard
from ringleader.train.modes.token_ring.token_stretch import TokenStretch

CALL, SUMS = BUCKETS, BUCKETS + 2
"""Message tags: where tokens carry the weights there are no buckets."""


class GroupCallKind(IntEnum):
    """The kind of a conductor's call: an item to be computed, patience, or the end of the stretch."""

    WORK = 0
    WAIT = 1
    CLOSE = 2


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A conductor's call; the weights follow with work, and at the end where no tokens come to the followers.

    Attributes:
        finished: the conductor begins no more items.
        settled: items that nothing can take back.
    """

    kind: GroupCallKind
    finished: bool
    settled: ItemSet


TYPES = (GroupCall, GroupCallKind, ItemSet)


class NodeGroup:
    """One node group in one generation, seen from one of its members. Every call may raise ExchangeBroken.

    Args:
        ranks: the conductor first.
        together: everybody gets the sum of the gradients; else the conductor alone.
    """

    def __init__(
        self, communicator: Communicator, ranks: Sequence[int], news: Gossip, *, together: bool
    ) -> None:
        self._communicator = communicator
        self._news = news
        self._together = together
        self._ranks = list(ranks)
        self.leads = communicator.rank == ranks[0]
        others = ranks[1:] if self.leads else ranks[:1]
        self._peers: dict[int, GossipPeer] = {rank: news.peer() for rank in others}

    def call(self, call: GroupCall, weights: Tensor | None) -> None:
        """Send a call to all followers; for the conductor."""

        def act(transport: Transport) -> None:
            leaving = []
            for rank, peer in self._peers.items():
                messages = sent((call, self._news.take_for(peer)), transport.seal)
                if weights is not None:
                    messages.append(weights)
                leaving += [transport.isend(message, rank, CALL) for message in messages]
            for work in leaving:
                work.wait()

        self._do(act, "call")

    def hear(self) -> GroupCall:
        """Receive the conductor's next call; for followers."""
        heard: list[Any] = []
        self._do(lambda transport: heard.append(receive(transport, self._ranks[0], CALL, *TYPES)), "call")
        call, news = heard[0]
        self._learn(self._ranks[0], news)
        return call  # type: ignore[no-any-return]

    def weights(self, into: Tensor) -> None:
        """Receive the weights that follow a call; for followers."""
        self._do(lambda transport: transport.irecv(into, self._ranks[0], CALL).wait(), "weights")

    def answer(self, halt: bool) -> None:
        """Send the conductor news, and whether somebody wants the loop to pause; for followers."""

        def act(transport: Transport) -> None:
            told = sent((halt, self._news.take_for(self._peers[self._ranks[0]])), transport.seal)
            for work in [transport.isend(part, self._ranks[0], CALL) for part in told]:
                work.wait()

        self._do(act, "answer")

    def answers(self) -> bool:
        """Receive the answers of all followers; for the conductor. Returns whether somebody wants the loop to pause."""
        heard: list[Any] = []

        def act(transport: Transport) -> None:
            heard.extend(receive(transport, rank, CALL, *TYPES) for rank in self._ranks[1:])

        self._do(act, "answer")
        for rank, (_, news) in zip(self._ranks[1:], heard, strict=True):
            self._learn(rank, news)
        return any(halt for halt, _ in heard)

    def add_up(self, values: Tensor) -> None:
        """Add the members' (n,) values in place, in the order of ranks: at all members, or at the conductor."""
        if self._together:
            me = self._ranks.index(self._communicator.rank)
            steps = [self._meant(step) for step in sum_steps(me, len(self._ranks), values)]
            ticket = self._communicator.submit(
                steps, [values], tag=SUMS, phase="sum", bucket=None, lane=EXPRESS
            )
            self._communicator.wait([ticket])
        elif self.leads:
            self._do(lambda transport: self._collect(transport, values), "sum")
        else:
            self._do(lambda transport: transport.isend(values, self._ranks[0], SUMS).wait(), "sum")

    def _collect(self, transport: Transport, values: Tensor) -> None:
        came = torch.empty_like(values)
        # In the order of ranks, whoever comes first: float addition is not associative.
        for rank in self._ranks[1:]:
            transport.irecv(came, rank, SUMS).wait()
            values.add_(came)

    def _meant(self, step: Step) -> Step:
        """The step with the rank of its peer, which a schedule counts among the members of the group."""
        return replace(step, peer=self._ranks[step.peer]) if isinstance(step, Send | Receive) else step

    def _learn(self, rank: int, news: Heard | None) -> None:
        if news is not None:
            self._news.hear_from(self._peers[rank], news)

    def _do(self, act: Callable[[Transport], None], phase: str) -> None:
        def run(_: Scratch, transport: Transport) -> None:
            act(transport)

        ticket = self._communicator.submit_call(run, [], phase=phase, bucket=None, lane=EXPRESS)
        self._communicator.wait([ticket])


class FollowedTokens(TokenStretch):
    """The tokens of a stretch for a worker to whom none come, as its conductor reports them; it asks for a pause with
    its next answer."""

    def __init__(self, communicator: Communicator, news: Gossip) -> None:
        super().__init__()
        self._communicator = communicator
        self._closed = False
        # A ring of one: what this worker reports goes to its conductor alone, with its answers.
        news.open(1)

    def close(self) -> None:
        """Record that the conductor has closed the stretch."""
        self._closed = True

    def over(self, patience_s: float = 0.0) -> bool:
        self._communicator.check()
        return self._closed
