"""A worker's time by kind: exposed communication, idle, recovery; the rest is compute."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from ringleader.comm.timeline import TRAINING, NoTimeline, Timeline


@dataclass(slots=True)
class TimeSplit:
    """Seconds by kind since the session began; `timeline` gets each interval too.

    Attributes:
        loading_s: of the idle ones those in which a batch was waited for.
    """

    timeline: Timeline = field(default_factory=NoTimeline)
    now: Callable[[], float] = perf_counter
    exposed_s: float = 0.0
    idle_s: float = 0.0
    loading_s: float = 0.0
    recovery_s: float = 0.0
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now()

    @property
    def wall_s(self) -> float:
        return self.now() - self._start

    @property
    def compute_s(self) -> float:
        # Kinds may overlap: a recovery has waits for the exchange in it.
        return max(0.0, self.wall_s - self.exposed_s - self.idle_s - self.recovery_s)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Count the block as waiting for the first plan, or for work."""
        start = self.now()
        try:
            yield
        finally:
            until = self.now()
            self.idle_s += until - start
            self.timeline.add(TRAINING, "idle", start, until)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the block as waiting for a batch, which is idle time, too."""
        before = self.idle_s
        with self.idle():
            yield
        self.loading_s += self.idle_s - before

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Count the block as waiting for the exchange, where no ticket of it is waited for."""
        start = self.now()
        try:
            yield
        finally:
            until = self.now()
            self.exposed_s += until - start
            self.timeline.add(TRAINING, "exposed", start, until)

    def add_exposed(self, waited_s: float) -> None:
        """Count what an exchange that ends has been waited for."""
        self.exposed_s += waited_s

    @contextmanager
    def recovery(self) -> Iterator[None]:
        """Count the block as recovery, from a broken exchange (or a boundary) to the next generation's first slice."""
        start = self.now()
        try:
            yield
        finally:
            until = self.now()
            self.recovery_s += until - start
            self.timeline.add(TRAINING, "recovery", start, until)
