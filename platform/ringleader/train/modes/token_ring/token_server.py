"""Servers that hold the weights for rings of tokens: a ring's leader pushes what its ring has moved, and pulls.

Each time a token comes by, its leader takes it to the server of its span: what the ring has added since the last time
goes there (length values), and the newest weights come back (length values) where they are not those that the ring has.
So a round of a ring costs its node S up and S down at most, however many workers the node has; a span whose server is
on the same node crosses no link.

Only what a server lists counts: it lists an item when the move is in its weights. The loop is over when every ring has
reported that it is quiet at the server's newest version.
"""

import threading
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ringleader.comm.communicator import Communicator, Ticket
from ringleader.comm.objects import packed, unpacked
from ringleader.comm.transports import Transport
from ringleader.exchange.side_channel import TOKENS
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.gossip import Gossip, GossipPeer, Heard
from ringleader.train.modes.token_ring.token_stretch import TokenStretch
from ringleader.train.modes.token_ring.topology import RingPlace
from ringleader.train.modes.token_ring.weight_spans import WeightSpans

HEADER, NEWS, WEIGHTS = TOKENS, TOKENS + 1, TOKENS + 2
HOLD_S = 1e-3
"""Seconds that a server with nothing new keeps a leader waiting, so that idle rings leave time to those who compute."""
PUSH_WORDS, REPLY_WORDS = 6, 5


@dataclass(frozen=True, slots=True)
class TokenServerReply:
    """A server's reply to a leader.

    Attributes:
        over: every ring is quiet, and has the last copy.
        halt: somebody wants the loop to pause.
        fresh: the token was renewed, so the others of the ring have an older copy.
    """

    over: bool
    halt: bool
    fresh: bool


class TokenServerClient:
    """A leader's client of the servers, on the thread that passes its tokens on. All copies are equal when it is
    made."""

    def __init__(self, place: RingPlace, spans: WeightSpans, news: Gossip) -> None:
        self._place = place
        self._spans = spans
        self._news = news
        self._generation = spans.generation
        self._base = [span.weights.clone() for span in spans.held]
        self._listed = [span.items.copy() for span in spans.held]
        self._have = [span.version for span in spans.held]
        self._peers: dict[int, GossipPeer] = {}

    def open(self) -> None:
        """Begin the generation's news."""
        self._peers = {server: self._news.peer() for server in self._place.token_servers}

    def run(self, transport: Transport, number: int, *, quiet: bool, halt: bool) -> TokenServerReply:
        """Push what the token has gained, and take over the server's newer weights. Raises ExchangeBroken."""
        server = self._place.held_by(number)
        moves, items = self._spans.moved(number, self._base[number], self._listed[number])
        news = _news(self._news.take_for(self._peers[server]), transport)
        words = [number, self._have[number], len(items), news.numel(), int(quiet), int(halt)]
        messages: list[tuple[Tensor, int]] = [(torch.tensor(words, dtype=torch.int64), HEADER)]
        # Items before news: both travel on one lane, and the server takes them in this order.
        if items:
            messages += [(torch.tensor(items, dtype=torch.int64), NEWS), (moves, WEIGHTS)]
        if news.numel():
            messages.append((news, NEWS))
        sent = [transport.isend(message, server, tag) for message, tag in messages]
        reply = torch.empty(REPLY_WORDS, dtype=torch.int64)
        transport.irecv(reply, server, HEADER).wait()
        for work in sent:
            work.wait()
        version, over, stop, listed, told = (int(word) for word in reply)
        if listed:
            self._renew(transport, server, number, version, listed)
        if told:
            self._news.hear_from(self._peers[server], _received(transport, server, told))
        return TokenServerReply(bool(over), bool(stop), bool(listed))

    def _renew(self, transport: Transport, server: int, number: int, version: int, listed: int) -> None:
        items = torch.empty(listed, dtype=torch.int64)
        transport.irecv(items, server, NEWS).wait()
        row = self._spans.incoming(number)
        transport.irecv(row, server, WEIGHTS).wait()
        # The next push is measured from what the server has now, or it would count these moves twice.
        self._base[number].copy_(row)
        self._have[number], self._listed[number] = version, ItemSet.decode(items.numpy())
        self._spans.renew(number, version, self._listed[number].copy(), self._generation)


class TokenServer(TokenStretch):
    """A server's side: one thread for each leader, until every ring has heard that all is over."""

    def __init__(
        self, communicator: Communicator, place: RingPlace, spans: WeightSpans, news: Gossip
    ) -> None:
        super().__init__()
        self._communicator = communicator
        self._place = place
        self._spans = spans
        self._news = news
        self._generation = spans.generation
        self._own = [n for n in range(len(spans)) if n % len(place.token_servers) == place.owns]
        self._quiet: dict[tuple[int, int], int | None] = {}
        self._changed = threading.Condition()
        self._tickets: list[Ticket] = []
        news.open(1)

    def start(self) -> None:
        if self._own:
            peers = {client: self._news.peer() for client in self._place.clients}
            self._tickets = [
                self._communicator.beside(partial(self._serve, *each), phase="token")
                for each in peers.items()
            ]

    def over(self, patience_s: float = 0.0) -> bool:
        """Whether all rings have heard that all is over; waits at most `patience_s` for each of them."""
        self._communicator.check()
        return all(self._communicator.done(ticket, patience_s) for ticket in self._tickets)

    def _serve(self, client: int, peer: GossipPeer, transport: Transport) -> None:
        """Answer one leader."""
        remaining = set(self._own)
        words = torch.empty(PUSH_WORDS, dtype=torch.int64)
        while remaining:
            transport.irecv(words, client, HEADER).wait()
            number, have, pushed, news, quiet, halt = (int(word) for word in words)
            moves, items = self._pushed(transport, client, number, pushed)
            if news:
                self._news.hear_from(peer, _received(transport, client, news))
            with self._changed:
                if items:
                    self._spans.merge(number, moves, items, self._generation)
                self._halt = self._halt or bool(halt)
                # A ring that pushes is not at the newest version: its own push makes another one.
                self._quiet[number, client] = have if quiet and not items else None
                self._changed.notify_all()
            if self._answer(transport, client, number, have, peer):
                remaining.remove(number)

    def _answer(self, transport: Transport, client: int, number: int, have: int, peer: GossipPeer) -> bool:
        """Send the newest weights where the leader has others. Returns whether the span is at rest."""
        span = self._spans.held[number]
        with self._changed:
            if span.version == have and not self._at_rest(number):
                self._changed.wait(HOLD_S)
            # Under one lock: version, list and weights have to be of the same moment.
            version, over = span.version, self._at_rest(number)
            fresh = version != have
            row = torch.empty_like(span.weights) if fresh else torch.empty(0, dtype=torch.float32)
            items = self._spans.copy_out(number, row)[1] if fresh else None
        listed = torch.from_numpy(items.encode()) if items is not None else torch.empty(0, dtype=torch.int64)
        news = _news(self._news.take_for(peer), transport)
        words = [version, int(over), int(self._halt), listed.numel(), news.numel()]
        messages: list[tuple[Tensor, int]] = [(torch.tensor(words, dtype=torch.int64), HEADER)]
        # Listed items before news, as in `run`.
        if fresh:
            messages += [(listed, NEWS), (row, WEIGHTS)]
        if news.numel():
            messages.append((news, NEWS))
        for work in [transport.isend(message, client, tag) for message, tag in messages]:
            work.wait()
        return over

    def _at_rest(self, number: int) -> bool:
        """Whether every ring is quiet at the newest version. No version is None, but -1 is one: where members were
        healed before the loop's first item."""
        version = self._spans.held[number].version
        return all(self._quiet.get((number, client)) == version for client in self._place.clients)

    def _pushed(self, transport: Transport, client: int, number: int, count: int) -> tuple[Tensor, list[int]]:
        moves = torch.empty_like(self._spans.held[number].weights)
        items = torch.empty(count, dtype=torch.int64)
        if count:
            transport.irecv(items, client, NEWS).wait()
            transport.irecv(moves, client, WEIGHTS).wait()
        return moves, items.tolist()


def _news(told: Heard | None, transport: Transport) -> Tensor:
    """(n,) uint8; empty where there is nothing to tell."""
    return packed(told, transport.seal) if told is not None else torch.empty(0, dtype=torch.uint8)


def _received(transport: Transport, peer: int, length: int) -> Heard:
    news = torch.empty(length, dtype=torch.uint8)
    transport.irecv(news, peer, NEWS).wait()
    told: Heard = unpacked(news, transport.seal)
    return told
