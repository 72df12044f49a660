"""The state of a token ring's worker between generations: its copies of the tokens, their news, its own position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ringleader.comm.objects import packed, unpacked
from ringleader.errors import StepMisuse
from ringleader.exchange import Exchange
from ringleader.train.generation.member import Member
from ringleader.train.generation.settled_records import StepRecord
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.gossip import Gossip, Known
from ringleader.train.modes.token_ring.node_group import FollowedTokens, NodeGroup
from ringleader.train.modes.token_ring.regeneration import ABSENT, RegeneratedToken, TokenCopy
from ringleader.train.modes.token_ring.resync import gather, resync
from ringleader.train.modes.token_ring.settled_steps import absent
from ringleader.train.modes.token_ring.token_exchange import TokenExchange
from ringleader.train.modes.token_ring.token_server import TokenServer, TokenServerClient
from ringleader.train.modes.token_ring.token_stretch import TokenStretch
from ringleader.train.modes.token_ring.topology import RingPlace, place_of
from ringleader.train.modes.token_ring.weight_spans import WeightSpans


@dataclass(frozen=True, slots=True)
class TokenReport:
    """A member's report when a generation begins."""

    copies: list[TokenCopy]
    known: Known
    offset: int


class WorkerTokens:
    """The tokens of one worker.

    Attributes:
        spans: the weights; the parameters live in them.
        news: reports of items that are not recorded yet, and the newest buffers.
        place: this member's place in the running generation.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._loop = -1
        self._heals = 0
        self._buffers_of = -1
        self._broken = False
        self._told: dict[str, Any] = {}
        self.place = RingPlace((0,), (0,))
        self.news = Gossip()
        sync = member.spec.sync
        # A server without a token would hear of nobody's end.
        least = sync.server_count if sync.holds_spans else 1
        self.spans = WeightSpans(
            member.trained.parameters, sync.tokens or max(member.spec.workers.max, least)
        )
        if len(self.spans) < least:
            raise StepMisuse(
                f"sync.servers is {least}, but the weights have only {len(self.spans)} spans to share among servers.",
                hint=f"Set sync.servers to {len(self.spans)} or less, or train a larger model.",
            )

    def begin(self, loop: BatchLoop) -> None:
        """Set up the lists of this loop; a member that was healed has no copies of its own, and nothing pending."""
        if self._loop != loop.number:
            self.spans.begin(absent(loop.epoch))
            self.news.clear()
            self._loop, self._buffers_of = loop.number, -1
        if self._heals != self._member.progress.heals:
            self.spans.forget()
            self._heals, self._buffers_of = self._member.progress.heals, -1
            self._go_on(loop, self._member.inside.take())

    def position(self) -> dict[str, Any]:
        """Each token's list while all members have the same copies, for a checkpoint: `call` is the loop whose items
        those are, which may not be the one that is about to begin; -1 between two loops."""
        # A pause behind an evaluation is saved as the next loop begins: these are not its items.
        call = -1 if self._member.progress.calls.is_finished(self._loop) else self._loop
        items = [copy.items.encode() for copy in self.spans.copies()]
        return {"call": call, "items": items, "known": self.news.all()}

    def _go_on(self, loop: BatchLoop, inside: dict[str, Any]) -> None:
        """Begin an attempt with a checkpoint: its weights are the tokens, which hold the items listed there."""
        if not inside:
            return
        here = inside["call"] == loop.number
        # One set for all spans: `stand` copies it for each.
        nothing = [ItemSet(0, absent(loop.epoch))] * len(self.spans)
        self.spans.stand(_listed(inside["items"], len(self.spans)) if here else nothing)
        if here:
            self.news.join([inside["known"]])

    def meet(self, exchange: Exchange, loop: BatchLoop) -> list[RegeneratedToken]:
        """Bring all members to the newest copies, the same news and the same position. Raises ExchangeBroken."""
        member = self._member
        self.place = self._place()
        self.begin(loop)
        loop.meet(member)
        self.spans.open()
        if self.place.token_servers and self._broken:
            # What a server does not list never happened: its items are computed again.
            held = (n for n in range(len(self.spans)) if n % len(self.place.token_servers) == self.place.owns)
            self.spans.forget(but=set(held))
        told = TokenReport(self._copies(), self.news.all(), member.progress.calls.offset)
        everybody = gather(exchange, told, TokenReport, TokenCopy, ItemSet)
        self._catch_up(exchange, loop, [told.offset for told in everybody])
        self.news.join([told.known for told in everybody])
        self.news.drop(member.progress.calls.offset * member.spec.shards)
        # Only after the news are joined: whoever holds a token that lists an item must hold its report.
        regenerated = resync(exchange, self.spans, [told.copies for told in everybody])
        self.freshen()
        if exchange.communicator is not None and member.generation.rank == 0:
            self._tell(member.generation.number)
        return regenerated

    def stand(self, exchange: Exchange, loop: BatchLoop | None) -> None:
        """Do the same for a checkpoint at once, if all members have begun this loop: weights are the tokens as they
        are. What is pending for them is computed again by whoever goes on from there. Raises ExchangeBroken."""
        member = self._member
        begun = (
            loop is not None
            and member.progress.opened == loop.number
            and not member.progress.calls.is_finished(loop.number)
        )
        elsewhere = exchange.all_reduce(torch.tensor([float(not begun)], dtype=torch.float64))
        if (
            loop is None or elsewhere.any()
        ):  # between two loops, or nobody has computed since what all began with
            return
        self.meet(exchange, loop)
        if self.place.holds:
            self.spans.show()

    def begin_stretch(self, exchange: Exchange) -> tuple[TokenStretch, NodeGroup | None]:
        """Start the tokens on their way. Returns the stretch, and the group with which this member computes; None:
        alone."""
        # Until `rest`: a break in between leaves moves in rings that no server lists.
        self._broken = True
        stretch, node_group = self._stretch(exchange), None
        if len(self.place.group_ranks) > 1 and exchange.communicator is not None:
            together = not self.place.serves
            node_group = NodeGroup(
                exchange.communicator, self.place.group_ranks, self.news, together=together
            )
        stretch.start()
        return stretch, node_group

    def rest(self, exchange: Exchange) -> ItemSet:
        """Record that the tokens have come to rest: all members have equal copies. Returns the items that they hold."""
        self._broken = False
        if len(self.place.token_servers) > 1:  # each server knows the end of its own spans
            resync(exchange, self.spans, gather(exchange, self.spans.copies(), TokenCopy, ItemSet))
        return self.spans.settle()

    @property
    def lost(self) -> bool:
        """Whether this member should have copies of the tokens, and has not got them from others."""
        return self.place.holds and not self.place.token_servers and not self.spans.known

    def freshen(self) -> None:
        """Take over, between two slices, the newest weights and buffers."""
        self.spans.take_over()
        self.rewind()

    def rewind(self) -> None:
        """Take over the newest buffers."""
        item, buffers = self.news.newest_buffers()
        if buffers is not None and item > self._buffers_of:
            self._member.buffers.commit(buffers)
            self._buffers_of = item
        self._member.buffers.rewind()

    def keep_buffers(self, item: int) -> None:
        """Keep what the forward of a slice of the first shard left as the newest buffers, unless it was computed
        again."""
        buffers = self._member.buffers
        buffers.keep_left()
        left = buffers.encode()
        if left is not None and item > self._buffers_of:
            self.news.left(item, left)

    def _tell(self, generation: int) -> None:
        """Report how the weights travel, where that is not what this worker reported last."""
        sizes = self.spans.sizes
        way = {"schedule": self.place.words, "buckets": len(sizes)}
        way |= {"least_bytes": min(sizes), "most_bytes": max(sizes)}
        told = {"algorithm": self._member.spec.sync.architecture, "ways": [way]}
        if told != self._told:
            self._told = told
            self._member.reporter.tell("exchange.chosen", generation, told)

    def _place(self) -> RingPlace:
        generation = self._member.generation
        return place_of(
            self._member.spec.sync.architecture, generation.plan, generation.groups, generation.rank
        )

    def _copies(self) -> list[TokenCopy]:
        if self.place.holds:
            return self.spans.copies()
        return [TokenCopy(ABSENT, ItemSet(), frozenset()) for _ in range(len(self.spans))]

    def _stretch(self, exchange: Exchange) -> TokenStretch:
        place, communicator = self.place, exchange.communicator
        if communicator is not None and not place.holds:
            return FollowedTokens(communicator, self.news)
        if communicator is None or (len(place.ring) == 1 and not place.token_servers):
            return TokenExchange(None, (), self.spans, self.news)
        if not place.token_servers:
            return TokenExchange(communicator, place.ring, self.spans, self.news)
        if place.owns is not None:
            return TokenServer(communicator, place, self.spans, self.news)
        leads = communicator.rank == place.ring[0]
        server_client = TokenServerClient(place, self.spans, self.news) if leads else None
        return TokenExchange(
            communicator, place.ring, self.spans, self.news, server_client=server_client, ends=False
        )

    def _catch_up(self, exchange: Exchange, loop: BatchLoop, offsets: Sequence[int]) -> None:
        """Bring members that have settled fewer steps to the records and the position of the one that is furthest."""
        member = self._member
        rank, furthest = member.generation.rank, max(range(len(offsets)), key=lambda r: (offsets[r], -r))
        behind = [r for r in range(len(offsets)) if offsets[r] < offsets[furthest]]
        if rank == furthest:
            position = (member.progress.samples, member.progress.loss, member.reporter.state())
            for receiver in behind:
                exchange.send_state(receiver, packed(position, exchange.seal))
        elif rank in behind:
            received = exchange.receive_state(furthest)
            samples, loss, records = unpacked(received, exchange.seal, StepRecord)
            member.reporter.catch_up(records)
            member.progress.catch_up(offsets[furthest], samples=samples, loss=loss)


def _listed(items: list[np.ndarray] | np.ndarray, spans: int) -> list[ItemSet]:
    """Each token's list from a checkpoint; checkpoints of earlier versions have one list for all."""
    return [ItemSet.decode(items[span] if isinstance(items, list) else items) for span in range(spans)]
