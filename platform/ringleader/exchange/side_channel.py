"""The channel of members beside the buckets: control words, small exact sums, and the state of a healing member."""

import torch
from torch import Tensor

from ringleader.comm.communicator import EXPRESS, Communicator, Ticket
from ringleader.comm.schedules import SCHEDULES, RankPart, Receive, Send, Span, Step
from ringleader.comm.schedules.schedule import chunks
from ringleader.comm.seal import Seal
from ringleader.comm.tree import TreeNode, tree_over

WORD, SUM, STATE, PROBE, PARTS, RESYNC, TOKENS, BUCKETS = 0, 2, 4, 6, 8, 10, 12, 16
"""Message tags: each takes two, one a channel; tokens take three; bucket b has BUCKETS + 2b."""

GATHER_BYTES = 64 << 10
"""The size up to which one hop with more bytes beats two hops with fewer."""

STATE_CHUNK, STATE_WINDOW = 4 << 20, 16 << 20
"""Bytes in one message, and on their way at once: a transport may hold a copy of them."""


def everyones_part(rank: int, size: int, length: int) -> RankPart:
    """The part of a rank in a sum to which every member brings one row."""
    tree = tree_over(size, frozenset(range(size)))
    return RankPart(rank, length, tuple((TreeNode(0, r),) for r in range(size)), tree)


def sum_steps(rank: int, size: int, values: Tensor) -> tuple[Step, ...]:
    """Steps that give everybody the sum of everybody's values."""
    # Both are canonical for every world: which of them is taken changes no bit.
    schedule = SCHEDULES["gather" if values.nbytes <= GATHER_BYTES else "direct"]
    return tuple(schedule.steps(everyones_part(rank, size, values.numel())))


class SideChannel:
    """The express lane of a communicator; alone (None) every sum is the value itself."""

    def __init__(self, communicator: Communicator | None) -> None:
        self._communicator = communicator

    @property
    def seal(self) -> Seal:
        """The seal of objects that go to other members."""
        return self._link.seal

    @property
    def _link(self) -> Communicator:
        """The communicator. Raises LookupError for a member that is alone."""
        if self._communicator is None:
            raise LookupError("a member that is alone sends nothing")
        return self._communicator

    def start_word(self, word: Tensor) -> tuple[Tensor, Ticket | None]:
        """Begin to sum a control word; the result is complete once the ticket is waited for."""
        total = word.detach().clone()
        if self._communicator is None:
            return total, None
        steps = sum_steps(self._communicator.rank, self._communicator.size, total)
        return total, self.start(steps, total, tag=WORD, phase="word")

    def all_reduce(self, values: Tensor) -> Tensor:
        total = values.detach().clone()
        if self._communicator is not None:
            steps = sum_steps(self._communicator.rank, self._communicator.size, total)
            self._communicator.wait([self.start(steps, total.view(-1), tag=SUM, phase="all_reduce")])
        return total

    def send_state(self, rank: int, payload: Tensor) -> None:
        """Send a header with the length, then the bytes: so many at a time as the receiver has said to have room
        for."""
        header = torch.tensor([payload.numel()], dtype=torch.int64)
        self._block(_sends(rank, (0, 1)), header)
        for window in chunks((0, payload.numel()), STATE_WINDOW):
            self._block(_sends(rank, window), payload)
            # The receiver's answer: the transport holds a copy of one window, never of the whole state.
            self._block(_receives(rank, (0, 1)), header)

    def receive_state(self, rank: int) -> Tensor:
        header = torch.zeros(1, dtype=torch.int64)
        self._block(_receives(rank, (0, 1)), header)
        payload = torch.empty(int(header.item()), dtype=torch.uint8)
        for window in chunks((0, payload.numel()), STATE_WINDOW):
            self._block(_receives(rank, window), payload)
            self._block(_sends(rank, (0, 1)), header)
        return payload

    def ping_pong(self, peer: int, values: Tensor, rounds: int) -> None:
        """Send the values and get them back, so often, as the lower rank of the two; the other does the reverse."""
        link, whole = self._link, (0, values.numel())
        turn = (Send(peer, 0, whole, 0), Receive(peer, 0, whole, 0))
        steps = (turn if link.rank < peer else turn[::-1]) * rounds
        link.wait([self.start(steps, values, tag=PROBE, phase="probe")])

    def shift(self, ranks: tuple[int, ...], values: Tensor, rounds: int) -> None:
        """Send one half of the values to the next of the ranks and receive the other from the one before; the next
        round sends what came."""
        link = self._link
        me, half = ranks.index(link.rank), values.numel() // 2
        after, before = ranks[(me + 1) % len(ranks)], ranks[me - 1]
        halves = ((0, half), (half, 2 * half))
        steps: list[Step] = []
        for turn in range(rounds):
            # By turns, so that nothing is received into the half that is being sent.
            out, into = halves[turn % 2], halves[1 - turn % 2]
            steps += [Receive(before, 0, into, 0), Send(after, 0, out, 0)]
        link.wait([self.start(tuple(steps), values, tag=PROBE, phase="probe")])

    def start(self, steps: tuple[Step, ...], row: Tensor, *, tag: int, phase: str) -> Ticket:
        return self._link.submit(steps, [row], tag=tag, phase=phase, bucket=None, lane=EXPRESS)

    def _block(self, steps: tuple[Step, ...], row: Tensor) -> None:
        self._link.wait([self.start(steps, row, tag=STATE, phase="state")])


def _sends(peer: int, span: Span) -> tuple[Step, ...]:
    return tuple(Send(peer, 0, chunk, 0) for chunk in chunks(span, STATE_CHUNK))


def _receives(peer: int, span: Span) -> tuple[Step, ...]:
    return tuple(Receive(peer, 0, chunk, 0) for chunk in chunks(span, STATE_CHUNK))
