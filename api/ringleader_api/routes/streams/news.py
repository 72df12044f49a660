"""News that many wait for: they are woken few in each turn of the event loop."""

import asyncio
from collections import deque

WOKEN_A_TURN = 32
"""The most that are woken in one turn of the event loop. Each takes some tens of microseconds of it."""


class News:
    """Something that comes once. Unlike an `asyncio.Event`, which wakes all who wait in one turn of the event loop, it
    leaves room between them: all other clients wait for the end of a turn. Used on one event loop alone."""

    def __init__(self) -> None:
        self._came = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return once it came."""
        if not self._came:
            mine = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            await mine

    def come(self) -> None:
        """Wake all who wait. Whoever asks from now on does not wait."""
        self._came = True
        woken = 0
        while self._waiting and woken < WOKEN_A_TURN:
            one = self._waiting.popleft()
            if not one.done():  # not gone, or over its time
                one.set_result(None)
                woken += 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self.come)
