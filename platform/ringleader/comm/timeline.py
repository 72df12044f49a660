"""When each thread of a worker did what: spans of the running step, taken away when it commits. Without torch."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TRAINING, BUCKETS, WORDS = "training", "buckets", "words"
"""The threads of a worker: the training function's, and the two lanes of a communicator."""

CAPACITY = 4096
"""Spans of one transaction at most; more are counted."""


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """Something that a thread did; seconds of this process's clock."""

    track: str
    name: str
    start_s: float
    stop_s: float
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TimelineStretch:
    """Everything between two commits: the spans of the steps `first` to `last`, none where the last one is past.

    Attributes:
        rank: of the worker in that generation.
        epoch_s: what to add to the spans' clock for seconds since 1970.
        dropped: spans that were too many.
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
    """The spans since the last commit. `add` belongs to any thread, all else to the training thread."""

    now: Callable[[], float] = time.perf_counter
    capacity: int = CAPACITY
    epoch_s: float = field(default_factory=lambda: time.time() - time.perf_counter())
    _spans: list[TimelineSpan] = field(default_factory=list)
    _open: list[tuple[str, float, dict[str, Any]]] = field(default_factory=list)
    _dropped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def inside(self) -> bool:
        """Whether something is begun and not ended."""
        return bool(self._open)

    def add(self, track: str, name: str, start_s: float, stop_s: float, **facts: Any) -> None:
        """Something that is over."""
        with self._lock:
            if len(self._spans) < self.capacity:
                self._spans.append(TimelineSpan(track, name, start_s, stop_s, facts))
            else:
                self._dropped += 1

    def begin(self, name: str, **facts: Any) -> None:
        """The training thread begins something, inside of what it has begun and not ended."""
        self._open.append((name, self.now(), facts))

    def end(self) -> None:
        """What was begun last is over; nothing where a break has ended it before."""
        if self._open:
            name, since, facts = self._open.pop()
            self.add(TRAINING, name, since, self.now(), **facts)

    def unwind(self, why: str) -> None:
        """All that was begun is over, and came to nothing."""
        until = self.now()
        while self._open:
            name, since, facts = self._open.pop()
            self.add(TRAINING, name, since, until, **facts, broken=why)

    def cut(
        self, *, first: int, last: int, generation: int, rank: int, since: float, until: float
    ) -> TimelineStretch:
        """These steps are committed: what was done for them."""
        with self._lock:
            spans, self._spans = tuple(self._spans), []
            dropped, self._dropped = self._dropped, 0
        return TimelineStretch(first, last, generation, rank, since, until, self.epoch_s, spans, dropped)


class Unsettled:
    """Stretches that wait until their steps can no longer be taken back."""

    def __init__(self) -> None:
        self._waiting: deque[TimelineStretch] = deque()

    def add(self, stretch: TimelineStretch) -> None:
        """A step that is committed again takes the place of what it was before."""
        while self._waiting and self._waiting[-1].last >= stretch.last >= stretch.first:
            self._waiting.pop()
        self._waiting.append(stretch)

    def settled(self, step: int) -> list[TimelineStretch]:
        """Those of steps below `step`, taken away."""
        out = []
        while self._waiting and self._waiting[0].last < step:
            out.append(self._waiting.popleft())
        return out
