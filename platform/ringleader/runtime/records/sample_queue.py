"""System samples on their way to the control plane: a bounded queue in memory, whose oldest are lost first."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from ringleader.wire.system import Figure, SystemSample

MOST = 120
"""The samples that wait, of ten minutes: a control plane that is away longer has a gap."""
BATCH = 10


class SampleQueue:
    """Takes samples from one thread, gives them to another.

    Attributes:
        dropped: how many were lost because too many waited, or because they were refused.
    """

    def __init__(self, most: int = MOST) -> None:
        self.dropped = 0
        self._lock = threading.Lock()
        self._most = most
        self._waiting: deque[SystemSample] = deque()
        self._newest: dict[str, Mapping[Figure, float]] = {}

    def put(self, sample: SystemSample) -> None:
        with self._lock:
            self._newest = {use.id: use.figures for use in sample.uses if use.kind == "worker"}
            self._waiting.append(sample)
            if len(self._waiting) > self._most:
                self._waiting.popleft()
                self.dropped += 1

    def newest(self, worker: str) -> Mapping[Figure, float]:
        """The figures of a worker in the newest sample; none if it is not in that."""
        return self._newest.get(worker, {})

    def batch(self) -> list[SystemSample]:
        """The oldest that wait."""
        with self._lock:
            return [self._waiting[at] for at in range(min(BATCH, len(self._waiting)))]

    def forget(self, samples: Sequence[SystemSample], *, refused: bool = False) -> None:
        """Forget those of a batch, which the control plane has stored or refused."""
        with self._lock:
            for sample in samples:
                # Some may have been dropped meanwhile.
                if self._waiting and self._waiting[0] is sample:
                    self._waiting.popleft()
                    self.dropped += refused
