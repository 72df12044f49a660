"""One reader for all followers of a feed: an item is read and encoded once, however many listen, whether it is new or
they catch up with it."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Generic, TypeVar

from anyio import to_thread
from fastapi.sse import format_sse_event

from ringleader.wire.views import EventView, LogLine
from ringleader_api.control import Control
from ringleader_api.problems import NotFound
from ringleader_api.routes.streams.news import News

Item = TypeVar("Item", EventView, LogLine)
Read = Callable[[str, int, int], list[Item]]
CHUNK, CHUNK_BYTES = 500, 1 << 18
KEPT, KEPT_BYTES, ALL_KEPT_BYTES = 2_000, 4 << 20, 64 << 20
"""The most new items that a channel keeps for its followers, and the most bytes, of one and of all channels; what is
older is read for those who ask."""
OLDER, FEW = 8, 64
"""The chunks of older items that a channel keeps, and the items in the first of them."""
JOINED = 16
LOOK_S = 0.05
LOOK_ANYWAY_S, LOOK_SHARED_S = 2.0, 0.3
"""The intervals at which a channel looks for rows that another process may have written; the second holds where several
do write."""


Spelt = tuple[int, bytes]
"""The number of an item, and its encoded text."""


def spelt(read: Read[Item], job_id: str, after: int, limit: int) -> list[Spelt]:
    """Read and encode the items after a number; meant for a thread, since hundreds of items take long."""
    found = read(job_id, after, limit)
    return [(item.seq, format_sse_event(data_str=item.model_dump_json(), id=str(item.seq))) for item in found]


def chunk(read: Read[Item], job_id: str, after: int, limit: int) -> tuple[int, bytes] | None:
    """The number of the last of those items, and the text of all; None where there are none. Meant for a thread."""
    found = spelt(read, job_id, after, limit)
    return (found[-1][0], b"".join(text for _, text in found)) if found else None


class Channel(Generic[Item]):
    """The newest items after `base`: at most `KEPT` items, `kept_bytes` together.

    `over`: nothing more will come.
    """

    def __init__(self, here: Control, job_id: str, after: int, read: Read[Item]) -> None:
        self._here = here
        self._job_id = job_id
        self._read: Read[Item] = read
        self._seqs: list[int] = []
        self._spelt: list[bytes] = []
        self._joined: dict[int, tuple[int, bytes]] = {}
        self._news = News()
        self._task: asyncio.Task[None] | None = None
        self._searched = after
        self._has_begun = False
        # The tasks that read older items, by the number behind which they begin, and the news of their ends.
        self._older: dict[int, tuple[asyncio.Task[tuple[int, bytes]], News]] = {}
        self._some = FEW
        self.base = after
        self.kept_bytes = 0
        self.over = False
        self._followers = 0

    def since(self, after: int) -> tuple[int, bytes] | None:
        """The newest seq of a chunk of the items above `after`, and its text; None where there are none."""
        # Followers mostly stand at the same number: the chunk from there is joined once for all of them.
        if after not in self._joined:
            first = bisect_right(self._seqs, after)
            if first == len(self._seqs):
                return None
            last, size_bytes = first, 0
            while last < min(first + CHUNK, len(self._seqs)) and size_bytes < CHUNK_BYTES:
                size_bytes += len(self._spelt[last])
                last += 1
            if len(self._joined) >= JOINED:
                self._joined.clear()
            self._joined[after] = (self._seqs[last - 1], b"".join(self._spelt[first:last]))
        return self._joined[after]

    async def older(self, after: int) -> tuple[int, bytes]:
        """The newest seq of a chunk of the items between `after` and `base`, and its text: read once for all followers
        that stand there, also for those that come a little later."""
        if after not in self._older:
            task, read = self._older[after] = asyncio.create_task(self._read_older(after)), News()
            task.add_done_callback(partial(self._keep_older, after))
            task.add_done_callback(lambda _: read.come())
        # Not the task itself: one of those who wait may go, and the others, and who comes next, get what is being read.
        task, read = self._older[after]
        await read.wait()
        return task.result()

    async def wait(self, for_s: float) -> None:
        """Wait until something came, the feed is over, or the time has passed."""
        if not self.over:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), for_s)

    def join(self) -> None:
        self._followers += 1

    def leave(self) -> int:
        """Count one follower off; returns how many are left."""
        self._followers -= 1
        return self._followers

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for task, _ in self._older.values():
            task.cancel()

    async def _read_older(self, after: int) -> tuple[int, bytes]:
        # In threads of their own, few and in turn: however much there is to catch up with, other requests find threads.
        base = self.base
        read = self._here.catching_up.submit(chunk, self._read, self._job_id, after, self._some)
        # Without any it is `base`, which was stored before the look; a later one may not have been.
        found = await asyncio.wrap_future(read) or (base, b"")
        # Adapted so that a chunk holds about `CHUNK_BYTES`, however long its items are.
        room = len(found[1]) < CHUNK_BYTES // 2
        self._some = min(CHUNK, 2 * self._some) if room else max(1, self._some // 2)
        return found

    def _keep_older(self, after: int, task: asyncio.Task[tuple[int, bytes]]) -> None:
        """Keep the chunks whose reads began last; a read that failed or was cancelled leaves none."""
        if task.cancelled() or task.exception() is not None:
            del self._older[after]
        kept, left_bytes = 0, self._most_bytes()
        for key, (one, _) in reversed(self._older.copy().items()):
            # Others may have been cancelled, or have failed, in the same turn: each leaves by its own callback.
            if one.done() and not one.cancelled() and one.exception() is None:
                kept, left_bytes = kept + 1, left_bytes - len(one.result()[1])
                if kept > OLDER or left_bytes < 0:
                    del self._older[key]

    async def _run(self) -> None:
        try:
            while not self._here.leaving.is_set() and await self._round():
                pass
        finally:
            self.over = True
            # Also when it failed: followers must wake up and end, rather than wait on a channel without a reader.
            self._tell()

    async def _round(self) -> bool:
        """Read the new items, or wait for some; False when no more can come."""
        # Taken before the read: a write between the two then shows as news, rather than being waited for.
        version = self._here.store.version
        try:
            # Asked first: what it wrote before it ended is then seen.
            ended, newest_event, newest_line = await to_thread.run_sync(
                self._here.feeds.reached, self._job_id
            )
        except NotFound:
            return False
        # `==`, not `is`: a bound method is another object at each access.
        self._begin_near(newest_event if self._read == self._here.feeds.events else newest_line)
        newest = self._seqs[-1] if self._seqs else self.base
        after = max(newest, self._searched)
        found = await to_thread.run_sync(spelt, self._read, self._job_id, after, CHUNK)
        if found:
            self._keep(found)
        if len(found) == CHUNK:
            return True
        if isinstance(self._read, partial):  # chosen lines: those that were passed over are not read again
            self._searched = newest_line
        if not ended:
            await self._until_news(version)
        return not ended

    def _begin_near(self, newest: int) -> None:
        """Begin with what is kept in the end."""
        # Of a long history the rest would be read for nobody. Chosen items have no such place: nobody knows which they
        # are.
        if not self._has_begun and not isinstance(self._read, partial) and newest - KEPT > self.base:
            self.base = newest - KEPT
            self._tell()
        self._has_begun = True

    def _keep(self, found: list[Spelt]) -> None:
        self._seqs += [seq for seq, _ in found]
        self._spelt += [text for _, text in found]
        self.kept_bytes += sum(len(text) for _, text in found)
        self._let_go(self._most_bytes())
        self._tell()

    def _most_bytes(self) -> int:
        """The most that this channel may keep of new items, and again of older ones."""
        return min(KEPT_BYTES, ALL_KEPT_BYTES // max(1, len(self._here.channels)))

    def _let_go(self, most_bytes: int) -> None:
        """Drop the oldest items until no more is kept than allowed."""
        gone = 0
        while gone < len(self._seqs) and (len(self._seqs) - gone > KEPT or self.kept_bytes > most_bytes):
            self.kept_bytes -= len(self._spelt[gone])
            gone += 1
        if gone:
            self.base = self._seqs[gone - 1]
            del self._seqs[:gone], self._spelt[:gone]

    def _tell(self) -> None:
        self._joined.clear()
        # Those who wait hold the old news; those who come from now on wait for the next write.
        self._news.come()
        self._news = News()

    async def _until_news(self, version: int) -> None:
        """Wait for a write to the store; look now and then in any case."""
        # Other processes may write, too, which this store's version does not tell.
        look_at = time.monotonic() + (LOOK_SHARED_S if self._here.store.shared else LOOK_ANYWAY_S)
        while (
            self._here.store.version == version
            and time.monotonic() < look_at
            and not self._here.leaving.is_set()
        ):
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def followed(here: Control, job_id: str, after: int, read: Read[Item]) -> AsyncIterator[Channel[Item]]:
    """The channel of this feed of the job: begun by the first follower, ended with the last."""
    key = (job_id, _named(read))
    channel = here.channels.get(key)
    if channel is None or channel.over:
        channel = here.channels[key] = Channel(here, job_id, after, read)
        channel.begin()
    channel.join()
    try:
        yield channel
    finally:
        if not channel.leave():
            channel.end()
            # Another may have taken its place: one that is over is replaced while its last followers still leave.
            if here.channels.get(key) is channel:
                del here.channels[key]


def _named(read: Callable[..., object]) -> str:
    """The same key for the same feed with the same filter."""
    if isinstance(read, partial):
        return f"{read.func.__name__} {read.keywords}"
    return read.__name__
