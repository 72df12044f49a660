"""Replays a schedule's steps on a clock: how long a sum takes, and what crosses each node's link.

A message of s bytes takes α + β·s. It begins once it is sent, awaited, and both its ports are free: between nodes the
two nodes' links, inside a node the two ranks' own ports. A port carries one message at a time in each direction, the
one that has waited longest first, one sender's in the order of its steps. An add of s bytes takes γ·s of its rank's
time. The ranks of a node share its cores: of the messages inside it one begins after the other, apart by what each
costs the others. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994, with γ as in
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from ringleader.comm.schedules import Add, RankPart, Receive, Schedule, Send, Span, Step
from ringleader.comm.schedules.schedule import size


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The cost of a message: α, the time of an empty one, and β, the time of each byte."""

    latency_s: float
    s_per_byte: float


NOTHING = LinkCost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class TriedSchedule:
    """The fastest schedule of those that members tried for one kind of sum.

    Attributes:
        part: rank 0's part, of the size up to which buckets share an answer.
        canonical: whether only canonical schedules stood to choose.
    """

    part: RankPart
    canonical: bool
    element_bytes: int
    schedule: str


@dataclass(frozen=True, slots=True)
class ClusterCosts:
    """The costs of a cluster.

    Attributes:
        inside: between two ranks of one node.
        between: between ranks of two nodes.
        add_s_per_byte: γ, of adding one row to another, by the bytes of one.
        crowded: what a message inside a node adds to every other one there; nothing where each rank has a machine of
            its own. As the gap of LogP, Culler et al., "LogP: towards a realistic model of parallel computation", 1993.
        tried: sums that were tried, for which no simulation is asked any more.
    """

    inside: LinkCost
    between: LinkCost
    add_s_per_byte: float
    crowded: LinkCost = NOTHING
    tried: tuple[TriedSchedule, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of one exchange.

    Attributes:
        finish_s: when each rank has done its last step and transfer.
        left_bytes, entered_bytes: what crosses each node's link, outwards and inwards.
        messages: the number of messages of all ranks.
    """

    finish_s: tuple[float, ...]
    left_bytes: tuple[int, ...]
    entered_bytes: tuple[int, ...]
    messages: int

    @property
    def seconds(self) -> float:
        return max(self.finish_s)


class TooLong(Exception):
    """The schedule takes longer than the caller's limit."""


def simulate(
    schedule: Schedule, part: RankPart, costs: ClusterCosts, element_bytes: int = 4, until_s: float = math.inf
) -> Forecast:
    """Run the steps of all ranks on the clock, from time 0.

    Args:
        part: any rank's part.

    Raises:
        TooLong: it takes longer than `until_s`.
        ValueError: the schedule's ranks wait for each other for ever.
    """
    clock = _Clock(part, costs, element_bytes)
    steps = [list(schedule.steps(replace(part, rank=rank))) for rank in range(part.world)]
    # The bound costs one pass over the steps; playing all messages of many ranks takes seconds.
    if until_s < math.inf and clock.least_s(steps) > until_s:
        raise TooLong
    ranks = [_Rank(number, each, clock) for number, each in enumerate(steps)]
    for rank in ranks:
        rank.go_on()
    while clock.ticks:
        if clock.ticks[0][0] > until_s:
            raise TooLong
        for message in clock.tick():
            ranks[message.source].go_on()
            ranks[message.target].go_on()
    stuck = [rank.number for rank in ranks if not rank.finished]
    if stuck:
        raise ValueError(f"{schedule.name}: ranks {stuck} wait for ever; a step of a peer is missing")
    finish_s = tuple(rank.now for rank in ranks)
    return Forecast(finish_s, tuple(clock.left), tuple(clock.entered), clock.messages)


# Compared by identity, so that messages can be held in sets.
@dataclass(slots=True, eq=False)
class _Message:
    """One transfer, and its ports.

    Attributes:
        turn: the number of messages that its sender had sent before it.
        able_s: the time at which both ends were there.
        done_s: the time of its end, known once it has begun.
    """

    source: int
    target: int
    elements: int
    out: int
    into: int
    turn: int = 0
    able_s: float = 0.0
    done_s: float | None = None

    @property
    def rightful(self) -> tuple[float, int, int]:
        """The sort key by which messages get their ports."""
        return self.able_s, self.turn, self.source

    def meet(self, now: float) -> None:
        """Note that the second end is there."""
        self.able_s = max(now, self.able_s)

    def send_in(self, turn: int) -> None:
        self.turn = turn

    def begin(self, done_s: float) -> None:
        self.done_s = done_s


_Transfers = dict[int, list[tuple[Span, _Message]]]


class _Clock:
    """The clock: messages that wait for their ports or are in flight.

    Ports are numbered: 0..P-1 the ranks' own ones, P.. the nodes' links.
    """

    def __init__(self, part: RankPart, costs: ClusterCosts, element_bytes: int) -> None:
        self.add_s = costs.add_s_per_byte * element_bytes
        self.left = [0] * len(part.nodes)
        self.entered = [0] * len(part.nodes)
        self.ticks: list[tuple[float, int, _Message]] = []
        self._element_bytes = element_bytes
        self._costs = costs
        self._world = part.world
        self._node_of = {rank: number for number, ranks in enumerate(part.nodes) for rank in ranks}
        ports = range(part.world + len(part.nodes))
        self._busy_out, self._busy_in = [False for _ in ports], [False for _ in ports]
        self._wait_out: list[list[_Message]] = [[] for _ in ports]
        self._wait_in: list[list[_Message]] = [[] for _ in ports]
        self._one_ended: dict[tuple[int, int, int, bool], deque[_Message]] = defaultdict(deque)
        self._turns = [0] * part.world
        self._numbers = count()
        self._open_s = [0.0] * len(part.nodes)

    def post(
        self, source: int, target: int, channel: int, span: Span, now: float, *, sends: bool
    ) -> _Message:
        """Post one end of a message. Ends match in order; with the second the message may begin."""
        waiting = self._one_ended[source, target, channel, not sends]
        if waiting:
            message = waiting.popleft()
            message.meet(now)
            # The number breaks ties: messages themselves have no order.
            heapq.heappush(self.ticks, (message.able_s, next(self._numbers), message))
        else:
            # The first end: it waits for the other, by whose time the message becomes able to begin.
            message = self._message(source, target, size(span), now)
            self._one_ended[source, target, channel, sends].append(message)
        if sends:
            message.send_in(self._turns[source])
            self._turns[source] += 1
        return message

    @property
    def messages(self) -> int:
        return sum(self._turns)

    def least_s(self, steps: Sequence[Sequence[Step]]) -> float:
        """A lower bound in seconds: the busiest port's time to send all it has to. `steps`: of each rank."""
        busy: dict[int, float] = defaultdict(float)
        for source, each in enumerate(steps):
            for step in each:
                if isinstance(step, Send):
                    message = self._message(source, step.peer, size(step.span))
                    busy[message.out] += self._takes(message)
        # Outgoing ports only: a lower bound may be too low, and this needs no pairing of messages.
        return max(busy.values(), default=0.0)

    def tick(self) -> list[_Message]:
        """Advance to the next moment at which a message ends or becomes able to begin.

        Returns:
            the messages that begin now: when they end is known.
        """
        now = self.ticks[0][0]
        hopeful: set[_Message] = set()
        while self.ticks and self.ticks[0][0] == now:
            _, _, message = heapq.heappop(self.ticks)
            # Each message is on the heap twice: when it becomes able to begin, and when it ends.
            if message.done_s is None:
                self._wait_out[message.out].append(message)
                self._wait_in[message.into].append(message)
                hopeful.add(message)
            else:
                self._busy_out[message.out] = self._busy_in[message.into] = False
                hopeful.update(self._wait_out[message.out], self._wait_in[message.into])
        begun = []
        # Sorted, as a set's order differs between processes and all ranks must forecast alike.
        for message in sorted(hopeful, key=lambda m: m.rightful):
            if not self._busy_out[message.out] and not self._busy_in[message.into]:
                self._begin(message, now)
                begun.append(message)
        return begun

    def _begin(self, message: _Message, now: float) -> None:
        away = message.out >= self._world
        carried = message.elements * self._element_bytes
        begun = now if away else self._enter(message, now, carried)
        done_s = begun + self._takes(message)
        message.begin(done_s)
        heapq.heappush(self.ticks, (done_s, next(self._numbers), message))
        self._busy_out[message.out] = self._busy_in[message.into] = True
        self._wait_out[message.out].remove(message)
        self._wait_in[message.into].remove(message)
        if away:
            self.left[message.out - self._world] += carried
            self.entered[message.into - self._world] += carried

    def _takes(self, message: _Message) -> float:
        link = self._costs.between if message.out >= self._world else self._costs.inside
        return link.latency_s + link.s_per_byte * message.elements * self._element_bytes

    def _enter(self, message: _Message, now: float, carried: int) -> float:
        """The time at which a message may begin inside its node; the node's next one is kept apart by `crowded`."""
        node, crowded = self._node_of[message.source], self._costs.crowded
        begun = max(now, self._open_s[node])
        self._open_s[node] = begun + crowded.latency_s + crowded.s_per_byte * carried
        return begun

    def _message(self, source: int, target: int, elements: int, now: float = 0.0) -> _Message:
        """A message whose first end is there now."""
        here, there = self._node_of[source], self._node_of[target]
        if here == there:
            return _Message(source, target, elements, source, target, able_s=now)
        return _Message(source, target, elements, self._world + here, self._world + there, able_s=now)


class _Rank:
    """One rank's way through its steps; it stops at a step that waits for a message whose end is not known yet."""

    def __init__(self, number: int, steps: list[Step], clock: _Clock) -> None:
        self.number = number
        self.now = 0.0
        self.finished = False
        self._clock = clock
        self._left = deque(steps)
        self._arriving: _Transfers = defaultdict(list)
        self._leaving: _Transfers = defaultdict(list)

    def go_on(self) -> None:
        while self._left:
            if not self._take(self._left[0]):
                return
            self._left.popleft()
        transfers = [*self._arriving.values(), *self._leaving.values()]
        under_way = [message for place in transfers for _, message in place]
        self.finished = all(message.done_s is not None for message in under_way)
        if self.finished:
            self.now = max([self.now, *(message.done_s or 0.0 for message in under_way)])

    def _take(self, step: Step) -> bool:
        """Do a step; False if it has to wait."""
        match step:
            case Receive(peer, place, span, channel):
                message = self._clock.post(peer, self.number, channel, span, self.now, sends=False)
                self._arriving[place].append((span, message))
            case Send(peer, place, span, channel):
                if not self._wait(self._arriving, place, span):
                    return False
                message = self._clock.post(self.number, peer, channel, span, self.now, sends=True)
                self._leaving[place].append((span, message))
            case Add(into, source, span):
                arrived = self._wait(self._arriving, into, span) and self._wait(self._arriving, source, span)
                if not arrived or not self._wait(self._leaving, into, span):
                    return False
                self.now += self._clock.add_s * size(span)
        return True

    def _wait(self, transfers: _Transfers, place: int, span: Span) -> bool:
        """Advance this rank's time past the transfers that touch the span; False while one has no end yet."""
        under_way = transfers[place]
        if not under_way:
            return True
        begin, end = span
        touching = [message for (start, stop), message in under_way if start < end and begin < stop]
        for message in touching:
            if message.done_s is None:
                return False
            self.now = max(self.now, message.done_s)
        if touching:
            transfers[place] = [item for item in under_way if item[0][0] >= end or begin >= item[0][1]]
        return True
