"""A worker's timeline: what each thread did in the running step, taken away when it commits. Without torch."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

TRAINING, BUCKETS, WORDS = "training", "buckets", "words"
"""The threads of a worker: the training function's, and the two lanes of a communicator."""

CAPACITY = 4096
"""The most spans of one transaction; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """One activity of a thread; seconds of this process's clock."""

    track: str
    name: str
    start_s: float
    stop_s: float
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TimelineStretch:
    """All spans between two commits, of the steps `first` to `last`; of no step (`first` beyond `last`) behind the
    last one.

    Attributes:
        rank: of the worker in that generation.
        epoch_s: the offset of the spans' clock from seconds since 1970.
        dropped: the number of spans that were too many.
    """

    first: int
    last: int
    generation: int
    rank: int
    start_s: float
    stop_s: float
    epoch_s: float
    spans: tuple[TimelineSpan, ...]
    dropped: int = 0


@dataclass(slots=True)
class Timeline:
    """The spans since the last commit. `add` belongs to any thread, all else to the training thread.

    Attributes:
        on: whether anything is recorded.
    """

    on: ClassVar[bool] = True
    now: Callable[[], float] = time.perf_counter
    capacity: int = CAPACITY
    # Taken once: a clock that is set while the job runs must not move spans against each other.
    epoch_s: float = field(default_factory=lambda: time.time() - time.perf_counter())
    _spans: list[TimelineSpan] = field(default_factory=list)
    _open: list[tuple[str, float, dict[str, Any]]] = field(default_factory=list)
    _dropped: int = 0
    # The lanes add spans while the training thread cuts.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def inside(self) -> bool:
        """Whether the training thread has a span open."""
        return bool(self._open)

    def add(self, track: str, name: str, start_s: float, stop_s: float, **facts: Any) -> None:
        """Record a span that is over."""
        with self._lock:
            if len(self._spans) < self.capacity:
                self._spans.append(TimelineSpan(track, name, start_s, stop_s, facts))
            else:
                self._dropped += 1

    def begin(self, name: str, **facts: Any) -> None:
        """Open a span of the training thread, inside those that are open."""
        self._open.append((name, self.now(), facts))

    def end(self) -> None:
        """Close the span opened last; does nothing where a break has closed it before."""
        if self._open:
            name, since, facts = self._open.pop()
            self.add(TRAINING, name, since, self.now(), **facts)

    def unwind(self, why: str) -> None:
        """Close all open spans as broken."""
        until = self.now()
        while self._open:
            name, since, facts = self._open.pop()
            self.add(TRAINING, name, since, until, **facts, broken=why)

    def cut(
        self, *, first: int, last: int, generation: int, rank: int, since: float, until: float
    ) -> TimelineStretch:
        """Take away the spans of steps that are committed now."""
        with self._lock:
            spans, self._spans = tuple(self._spans), []
            dropped, self._dropped = self._dropped, 0
        return TimelineStretch(first, last, generation, rank, since, until, self.epoch_s, spans, dropped)


class NoTimeline(Timeline):
    """The timeline of a job that asks for none: nothing is recorded."""

    __slots__ = ()
    on = False

    def add(self, track: str, name: str, start_s: float, stop_s: float, **facts: Any) -> None: ...

    def begin(self, name: str, **facts: Any) -> None: ...

    def end(self) -> None: ...

    def unwind(self, why: str) -> None: ...


NO_TIMELINE = NoTimeline()


class Unsettled:
    """Stretches held back until their steps can no longer be undone."""

    def __init__(self) -> None:
        self._waiting: deque[TimelineStretch] = deque()

    def add(self, stretch: TimelineStretch) -> None:
        """Add a stretch; one of a step that is committed again replaces the earlier one."""
        # A stretch of no step (`first` beyond `last`) replaces nothing.
        while self._waiting and self._waiting[-1].last >= stretch.last >= stretch.first:
            self._waiting.pop()
        self._waiting.append(stretch)

    def settled(self, step: int) -> list[TimelineStretch]:
        """Take away the stretches of steps below `step`."""
        out = []
        while self._waiting and self._waiting[0].last < step:
            out.append(self._waiting.popleft())
        return out
