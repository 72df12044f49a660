"""The indexes of files that an attempt's workers hand each other: who makes one, and those that were made.

They stay here and not with who made them, so that a joiner has one whose maker is gone. A supervisor that comes back
has none: whoever asks next makes it again.
"""

from collections.abc import Callable, Container
from threading import Lock

from ringleader.runtime.messages import IndexAnswer

ALL_BYTES = 96 << 20
NAMES = 256


class IndexBook:
    """The indexes by name. Called from any thread.

    Args:
        alive: the workers that may live.
    """

    def __init__(self, alive: Callable[[], Container[str]], *, all_bytes: int = ALL_BYTES) -> None:
        self._alive = alive
        self._all_bytes = all_bytes
        self._lock = Lock()
        self._makers: dict[str, str] = {}
        # The longest unused comes first.
        self._made: dict[str, bytes] = {}

    def ask(self, worker: str, name: str) -> IndexAnswer:
        """The answer to a worker that needs an index. One is told to make it, others to ask again while that one
        lives."""
        alive = self._alive()
        with self._lock:
            if name in self._made:
                index = self._made[name] = self._made.pop(name)
                return IndexAnswer("made", index) if index else IndexAnswer("own")
            maker = self._makers.get(name, worker)
            # Its own question comes again where the answer to the first one was lost.
            if maker != worker and maker in alive:
                return IndexAnswer("makes")
            self._makers[name] = worker
            return IndexAnswer("make")

    def made(self, worker: str, name: str, index: bytes | None) -> None:
        """Keep the index that a worker has made, an empty one in place of one that is too large. With None let another
        worker make it."""
        with self._lock:
            if self._makers.get(name) == worker:
                del self._makers[name]
            if index is None:
                return
            self._made.pop(name, None)
            self._made[name] = index
            while len(self._made) > NAMES or sum(map(len, self._made.values())) > self._all_bytes:
                del self._made[next(iter(self._made))]
