"""The indexes of files that the workers of a job hand each other over nodes, by way of their supervisor."""

from threading import Event, Lock
from time import monotonic

from ringleader.runtime.worker.supervisor_link import SupervisorLink

MOST_BYTES = 48 << 20
"""The largest index that is handed over; each node makes its own larger ones."""
AGAIN_S = 0.2
WAIT_S = 600.0
"""The longest wait for another node's worker: it lives, and may still be looking through files for longer than this
one is ready to wait."""


class HandedIndexes:
    """One worker's part; implements `IndexGroup`.

    Args:
        wait_s: after so long with no index it makes its own.
        most_bytes: of an index that is handed over.
    """

    def __init__(
        self,
        worker: str,
        supervisor_link: SupervisorLink,
        *,
        wait_s: float = WAIT_S,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._worker = worker
        self._supervisor_link = supervisor_link
        self._wait_s = wait_s
        self._most_bytes = most_bytes
        self._asking = Lock()

    def take(self, name: str) -> bytes | None:
        until = monotonic() + self._wait_s
        while monotonic() < until:
            # One question at a time, however many threads open files: the link takes few at once.
            with self._asking:
                answer = self._supervisor_link.index(self._worker, name)
            if answer is None or answer.state in ("make", "own"):
                return None
            if answer.state == "made":
                return answer.index
            Event().wait(AGAIN_S)
        return None

    def give(self, name: str, index: bytes | None) -> None:
        handed = b"" if index is not None and len(index) > self._most_bytes else index
        with self._asking:
            self._supervisor_link.index_made(self._worker, name, handed)
