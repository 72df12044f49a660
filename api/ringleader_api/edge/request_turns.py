"""Turns per credential: a client that sends many requests at once waits for its own, and holds up nobody else."""

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future

from starlette.types import Message, Receive, Send

AT_ONCE = 4
KNOWN_KEPT = 10_000


class KnownCredentials:
    """The credentials that were valid when they were shown last, of those seen lately. Kept as hashes that mean nothing
    outside this process. Safe between threads."""

    def __init__(self, most: int = KNOWN_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._seen: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, shown: str) -> bool:
        # Without the lock: one lookup is atomic in CPython, and a miss only costs a wait for a turn.
        return hash(shown) in self._seen

    def note(self, shown: str) -> None:
        key = hash(shown)
        with self._lock:
            self._seen[key] = None
            self._seen.move_to_end(key)
            if len(self._seen) > self._most:
                self._seen.popitem(last=False)

    def forget(self, shown: str) -> None:
        with self._lock:
            self._seen.pop(hash(shown), None)


class RequestTurns:
    """Admits a bounded number of requests of one credential at a time, the others in the order in which they came.

    Each takes threads, of which there are few, and time of the one interpreter. A turn is over when the answer begins,
    or the body is asked for: a stream, or an upload, holds none. Safe between threads, and between event loops.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[Future[None]]] = {}

    async def begin(self, key: str) -> "RequestTurn":
        """Wait for a turn and take it."""
        with self._lock:
            if self._taken[key] < self._at_once:
                self._taken[key] += 1
                return RequestTurn(lambda: self._end(key))
            # Not asyncio's: the turn may be passed on in another thread, or on another event loop.
            mine: Future[None] = Future()
            self._waiting.setdefault(key, deque()).append(mine)
        try:
            await asyncio.wrap_future(mine)
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it came at this moment
                self._end(key)
            raise
        return RequestTurn(lambda: self._end(key))

    def _end(self, key: str) -> None:
        """Pass the turn on to the next in line, or free it."""
        with self._lock:
            waiting = self._waiting.get(key, deque())
            while waiting:
                following = waiting.popleft()
                if not waiting:
                    del self._waiting[key]
                # False for one whose client has gone meanwhile: the turn goes to the one behind it.
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]


class RequestTurn:
    """One turn. `end` may be called again, and then does nothing."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go: Callable[[], None] | None = let_go

    def end(self) -> None:
        if self._let_go is not None:
            let_go, self._let_go = self._let_go, None
            let_go()

    def reading(self, receive: Receive) -> Receive:
        async def ended() -> Message:
            self.end()
            return await receive()

        return ended

    def answering(self, send: Send) -> Send:
        async def ended(message: Message) -> None:
            self.end()
            await send(message)

        return ended
