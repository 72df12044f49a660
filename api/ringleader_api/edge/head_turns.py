"""Turns of the event loop at parsing requests: few are begun in each, one credential after the other."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Hashable

HEADS_A_TURN = 4
"""The most requests that are begun in one turn of the event loop. Parsing one and its way to the turns of its
credential take a third of a millisecond; the request of another client takes some tens of turns."""
_CREDENTIAL = re.compile(rb"\r\n(?:authorization|cookie):([^\r\n]*)", re.IGNORECASE)
_HEAD_BYTES = 1 << 13


class HeadTurns:
    """Begins what comes in as it comes, up to a bound in a turn of the event loop. What is beyond waits for the next
    turns, in which each credential has one after the other: hundreds of requests of one client that arrive together
    are not all parsed before one of another client. Used on one event loop alone."""

    def __init__(self, a_turn: int = HEADS_A_TURN) -> None:
        self._a_turn = a_turn
        self._left = a_turn
        self._counts = False
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}

    def has_room(self) -> bool:
        """Take one of this turn's places, if any is left that nobody waits for."""
        if not self._counts:
            # Places are counted from the first on: an idle loop must not be woken in each turn.
            self._counts = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if not self._left or self._waiting:
            return False
        self._left -= 1
        return True

    def wait(self, key: Hashable, begin: Callable[[], None]) -> None:
        """Have `begin` called in one of the next turns, behind those that wait with the same key."""
        self._waiting.setdefault(key, deque()).append(begin)

    def _next_turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._left = self._a_turn
        while self._left and self._waiting:
            self._left -= 1
            key = next(iter(self._waiting))
            mine = self._waiting.pop(key)
            # By the loop: an error of one is reported as any callback's, and costs no other its turn.
            loop.call_soon(mine.popleft())
            if mine:
                self._waiting[key] = mine  # behind all others
        self._counts = self._left < self._a_turn
        if self._counts:
            loop.call_soon(self._next_turn)


def credential_in(data: bytes) -> bytes:
    """The credential that the beginning of a request shows, as it was sent; empty where it shows none."""
    found = _CREDENTIAL.search(data, 0, _HEAD_BYTES)
    return found[1] if found else b""
