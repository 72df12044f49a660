"""Tokens going round the members of one generation, on its communication thread.

A token is a header, its news, and the span's weights with their list where the next member has an older copy. Every
holder adds what is pending for the span and passes the token on at once. A token that brings nothing new is held back
for a moment: a ring in which nobody has anything to add would only take time from those who compute.

The end needs no vote. A holder that will add nothing more counts the token as quiet; a holder that adds begins the
count anew. When as many holders in a row as there are members have counted, all hold the last copy, and the token goes
round once more, without weights, to say so. Where servers hold the weights they alone know the end: the ring's leader,
who brings each token to its server as it comes by, reports that the ring is quiet, and hears when all are.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from ringleader.comm.communicator import Communicator, Ticket
from ringleader.comm.executor import Scratch
from ringleader.comm.objects import packed, unpacked
from ringleader.comm.transports import Transport
from ringleader.comm.transports.transport import Work
from ringleader.exchange.side_channel import TOKENS
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.gossip import Gossip
from ringleader.train.modes.token_ring.token_server import TokenServerClient
from ringleader.train.modes.token_ring.token_stretch import TokenStretch
from ringleader.train.modes.token_ring.weight_spans import WeightSpans

HOLD_S = 1e-3
"""Seconds that all tokens of a quiet ring together stay at a member. A hop through shared memory takes a tenth."""
HEADER, NEWS, WEIGHTS = TOKENS, TOKENS + 1, TOKENS + 2


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """The header of a token.

    Attributes:
        quiet: how many holders in a row will add nothing more, and have added nothing since the last one who did.
        left: members that have still to hear that all copies are equal for good; -1 before that.
        halt: somebody wants the loop to pause: nobody begins another item.
        listed: numbers in the list that comes with the weights; 0 where neither comes.
        news: bytes of news.
    """

    span: int
    version: int
    quiet: int
    left: int
    halt: int
    listed: int = 0
    news: int = 0


FIELDS = len(TokenHeader.__dataclass_fields__)


class TokenExchange(TokenStretch):
    """The tokens of one stretch of a loop, from `start` until all of them are over, at this member.

    All members hold equal copies, and know the same news, when it starts and when it is over.

    Args:
        communicator: None for a member that is alone: its moves are in the tokens at once.
        ring: the ranks that the tokens visit, in their order.
        server_client: the way to the servers, where they hold the weights: the first of a ring takes each token there.
        ends: whether a quiet round of this ring is the end.
    """

    def __init__(
        self,
        communicator: Communicator | None,
        ring: Sequence[int],
        spans: WeightSpans,
        news: Gossip,
        *,
        server_client: TokenServerClient | None = None,
        ends: bool = True,
    ) -> None:
        super().__init__()
        self._communicator = communicator
        self._spans = spans
        self._news = news
        self._server_client = server_client
        self._ends = ends
        self._size = len(ring) if communicator else 1
        self._place = ring.index(communicator.rank) if communicator else 0
        self._before = ring[self._place - 1] if communicator else 0
        self._after = ring[(self._place + 1) % self._size] if communicator else 0
        self._here: deque[TokenHeader] = deque()
        self._generation = spans.generation
        # Copies are equal at the start, so that weights travel only once they have changed.
        self._sent = [span.version for span in spans.held]
        self._leaving: list[list[tuple[Work, Tensor]]] = [[] for _ in spans.held]
        self._finished = False
        self._over = 0
        self._ticket: Ticket | None = None
        news.open(self._size)
        if server_client is not None:
            server_client.open()

    # --- the training thread --------------------------------------------------------------------------------------

    def start(self) -> None:
        self.added()  # moves that a generation before has left pending
        if self._communicator is not None:
            self._ticket = self._communicator.submit_call(self._run, [], phase="token", bucket=0)

    def halt(self) -> None:
        with self._spans.changed:
            super().halt()
            self._spans.changed.notify_all()

    def added(self) -> None:
        # A member that is alone holds every token, and adds to it at once.
        if self._communicator is None:
            for number in range(len(self._spans)):
                self._spans.add(number, self._generation)
            self._spans.settle()

    def finish(self) -> None:
        with self._spans.changed:
            self._finished = True
            self._spans.changed.notify_all()

    def over(self, patience_s: float = 0.0) -> bool:
        if self._communicator is None or self._ticket is None:
            return self._finished
        return self._communicator.done(self._ticket, patience_s)

    # --- the communication thread ---------------------------------------------------------------------------------

    def _run(self, _: Scratch, transport: Transport) -> None:
        count = len(self._spans)
        for number in range(count):
            # Spans that servers hold begin at the leader, who fetches them.
            at = home(number, count, self._size) if self._ends else 0
            if at == self._place:
                at_home = TokenHeader(number, self._spans.held[number].version, quiet=0, left=-1, halt=0)
                self._handle(transport, at_home, new=True)
        while self._over < count:
            token, new = self._receive(transport)
            self._handle(transport, token, new=new)
        # The stretch is over only when nothing of it is on its way any more.
        for leaving in self._leaving:
            _wait(leaving)

    def _receive(self, transport: Transport) -> tuple[TokenHeader, bool]:
        """The next token, and whether it brought weights that this member did not have."""
        if self._size == 1:
            return self._here.popleft(), False
        header = torch.empty(FIELDS, dtype=torch.int64)
        transport.irecv(header, self._before, HEADER).wait()
        token = TokenHeader(*header.tolist())
        listed = torch.empty(token.listed, dtype=torch.int64)
        news = torch.empty(token.news, dtype=torch.uint8)
        coming = [transport.irecv(listed, self._before, NEWS)] if token.listed else []
        coming += [transport.irecv(news, self._before, NEWS)] if token.news else []
        if token.listed:
            # The copy that is here becomes the memory of the next receive: it must have left before.
            _wait(self._leaving[token.span])
            coming.append(transport.irecv(self._spans.incoming(token.span), self._before, WEIGHTS))
        for work in coming:
            work.wait()
        if token.news:
            self._news.hear(unpacked(news, transport.seal))
        items = ItemSet.decode(listed.numpy()) if token.listed else None
        return token, self._spans.arrive(token.span, token.version, items, self._generation)

    def _handle(self, transport: Transport, token: TokenHeader, *, new: bool) -> None:
        """Add what is pending, and pass the token on."""
        if token.left < 0:
            token = self._visit(transport, token, new=new)
        else:
            token = TokenHeader(token.span, token.version, token.quiet, token.left - 1, token.halt)
        if token.left >= 0:
            self._over += 1
        # The last member to hear of the end keeps the token.
        if token.left != 0:
            self._pass(transport, token)

    def _visit(self, transport: Transport, token: TokenHeader, *, new: bool) -> TokenHeader:
        """Add what is pending. Returns the header with which the token leaves."""
        with self._spans.changed:
            self._halt = self._halt or bool(token.halt)
            if not (new or self._finished or self._spans.held[token.span].owed):
                # The condition is notified of new pending moves: a quiet token leaves with them at once.
                self._spans.changed.wait(HOLD_S / len(self._spans))
            finished = self._finished
            added = self._spans.add(token.span, self._generation)
        # Who adds makes the copies of all others old, so that the count begins anew.
        quiet = 0 if not finished else 1 if added else token.quiet + 1
        over = self._ends and quiet == self._size
        if self._server_client is not None:
            told = self._server_client.run(transport, token.span, quiet=quiet >= self._size, halt=self._halt)
            if told.halt:
                self.halt()
            over = told.over
            # Others of the ring have yet to see what the server sent: the count begins anew.
            quiet = int(finished) if told.fresh else quiet
        left = self._size - 1 if over else -1
        return TokenHeader(token.span, self._spans.held[token.span].version, quiet, left, int(self._halt))

    def _pass(self, transport: Transport, token: TokenHeader) -> None:
        span, leaving = token.span, self._leaving[token.span]
        if self._size == 1:
            self._spans.pass_by(span)
            self._here.append(token)
            return
        _wait(leaving)
        items = self._spans.passing(span)
        # Weights travel only to a neighbour whose copy is older.
        listed = _vector(items) if token.version != self._sent[span] else torch.empty(0, dtype=torch.int64)
        told = self._news.take()
        news = packed(told, transport.seal) if told is not None else torch.empty(0, dtype=torch.uint8)
        header = TokenHeader(
            span, token.version, token.quiet, token.left, token.halt, listed.numel(), news.numel()
        )
        # In the order in which the neighbour receives: lists and news travel on one lane.
        messages = [(torch.tensor(astuple(header), dtype=torch.int64), HEADER)]
        if listed.numel():
            messages.append((listed, NEWS))
        if news.numel():
            messages.append((news, NEWS))
        if listed.numel():
            messages.append((self._spans.held[span].weights, WEIGHTS))
            self._sent[span] = token.version
        for message, tag in messages:
            # With the message, whose memory has to live until it has left.
            leaving.append((transport.isend(message, self._after, tag), message))


def home(span: int, count: int, size: int) -> int:
    """The place in the ring where a token starts: spread evenly, so that the links carry different tokens."""
    return span * size // count


def _vector(items: ItemSet) -> Tensor:
    return torch.from_numpy(items.encode())


def _wait(leaving: list[tuple[Work, Tensor]]) -> None:
    while leaving:
        leaving.pop(0)[0].wait()
