"""The store where the members of attempts meet: a room for each attempt, open to those who prove that they have its
secret.

```
store ─► nonce ─► member        member ─► room, its own nonce, tag ─► store        store ─► tag ─► member
```

Each side proves that it has the secret before the other says anything more. A connection that has proven nothing gets
one nonce, and five seconds to answer it. A room keeps its words by meeting, and drops those of a meeting when a later
one of its line begins.
"""

import asyncio
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from ringleader.comm.seal import NONCE_BYTES, TAG_BYTES, Seal, nonce
from ringleader.comm.store_connection import (
    FRAME,
    GET,
    HEARD,
    HELLO,
    MEMBER,
    MOST_BYTES,
    OVER,
    SET,
    STORE,
    MeetingPlace,
    local_socket,
)

CHALLENGE_S = 5.0
STRANGERS = 128
"""The most connections that have not proven anything: beyond it the oldest is closed."""

READ_BYTES = 4 << 10
"""The read-ahead of a connection; one that has proven nothing needs room for no more than a name and a proof."""

MOST_NAME_BYTES = 255
ROOM_BYTES = 64 << 20
ROOM_S = 600.0
"""A room is closed when its attempt's supervisor has not asked for it for so long."""

WAIT_S = 60.0
"""The longest wait for a word, longer than any meeting."""

KEPT = {"pair/": 256}
"""The number of meetings of a line that may be in progress at once; one for lines not named here (generations)."""


@dataclass(slots=True)
class _Meeting:
    words: dict[str, bytes] = field(default_factory=dict)
    awaited: dict[str, list["asyncio.Future[bytes]"]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class _Room:
    secret: bytes
    asked_at: float
    size_bytes: int = 0
    members: set[asyncio.StreamWriter] = field(default_factory=set)
    lines: dict[str, dict[tuple[int, ...], _Meeting]] = field(default_factory=lambda: defaultdict(dict))

    def keep_open(self, now: float) -> None:
        self.asked_at = now

    def meeting(self, place: MeetingPlace) -> _Meeting | None:
        """The meeting of that name, begun if it is new; None if it is over, because a later one has begun."""
        line, kept = self.lines[place.line], KEPT.get(place.line, 1)
        if place.number not in line:
            # Older than all that are kept: its words are gone, and nobody must wait for them.
            if len(line) >= kept and place.number < min(line):
                return None
            line[place.number] = _Meeting()
            # Without this every generation of a job would leave its words behind.
            for number in sorted(line)[:-kept]:
                self._forget(line.pop(number))
        return line[place.number]

    def put(self, meeting: _Meeting, key: str, word: bytes) -> bool:
        """Store a word and wake those that wait for it; False if there is no room for it."""
        grown = len(word) - len(meeting.words.get(key, b""))
        if self.size_bytes + grown > ROOM_BYTES:
            return False
        self.size_bytes += grown
        meeting.words[key] = word
        for waiting in meeting.awaited.pop(key, []):
            # Whoever waited may have run out of time meanwhile.
            if not waiting.done():
                waiting.set_result(word)
        return True

    def close(self) -> None:
        for line in self.lines.values():
            for meeting in line.values():
                self._forget(meeting)
        self.lines.clear()
        for member in self.members:
            member.close()

    def _forget(self, meeting: _Meeting) -> None:
        self.size_bytes -= sum(map(len, meeting.words.values()))
        for waiting in (one for ones in meeting.awaited.values() for one in ones):
            # The waiting `_answer` is cancelled with it, which closes that member's connection.
            waiting.cancel()


class Rendezvous:
    """The store's server: a thread of this process.

    Args:
        folder: a folder of this node in which it takes connections of its own account as well, over a Unix socket: a
            crowd at the port does not keep those out.

    Attributes:
        port: the port at which it listens, on `host` alone.
        turned_away: the number of connections that have not proven that they are a member's.
    """

    def __init__(self, host: str, folder: Path | None = None) -> None:
        self.turned_away = 0
        self._rooms: dict[str, _Room] = {}
        # A dict for its order: the first key is the oldest connection.
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        # A long queue, because all members of a job may connect in one moment.
        listener = socket.create_server((host, 0), backlog=1024)
        self.port: int = listener.getsockname()[1]
        near = [] if folder is None else [_listening(local_socket(folder, self.port))]
        ready = threading.Event()
        live = self._until_closed([listener, *near], ready)
        threading.Thread(target=asyncio.run, args=(live,), name="rendezvous", daemon=True).start()
        # `admit` may be called at once, and needs the loop that the thread makes.
        ready.wait()

    def admit(self, room: str, secret: bytes) -> None:
        """Open a room, or keep it open; from any thread. Rooms that nobody asks for are closed."""
        asyncio.run_coroutine_threadsafe(self._admit(room, secret), self._loop).result()

    def words(self) -> Mapping[str, Iterable[str]]:
        """The keys stored in each room; from any thread."""
        return asyncio.run_coroutine_threadsafe(self._words(), self._loop).result()

    def close(self) -> None:
        """Stop the server and close every connection."""
        self._loop.call_soon_threadsafe(self._closed.set)

    async def _until_closed(self, listeners: list[socket.socket], ready: threading.Event) -> None:
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as serving:
            for one in listeners:
                start = asyncio.start_unix_server if _is_local(one) else asyncio.start_server
                await serving.enter_async_context(await start(self._meet, sock=one, limit=READ_BYTES))
            ready.set()
            await self._closed.wait()

    async def _admit(self, name: str, secret: bytes) -> None:
        now = monotonic()
        room = self._rooms.get(name)
        if room is not None and room.secret == secret:
            room.keep_open(now)
        else:
            if room is not None:
                room.close()
            self._rooms[name] = _Room(secret, now)
        for old in [n for n, r in self._rooms.items() if now - r.asked_at > ROOM_S]:
            self._rooms.pop(old).close()

    async def _words(self) -> dict[str, list[str]]:
        return {
            name: [key for line in room.lines.values() for meeting in line.values() for key in meeting.words]
            for name, room in self._rooms.items()
        }

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = None
        try:
            # The kernel lets no other account connect to the Unix socket, so nobody can crowd it.
            if not _is_local(writer.get_extra_info("socket")):
                self._expect(writer)
            room = await self._known(reader, writer)
            while room is not None:
                await self._answer(room, reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.CancelledError, struct.error):
            pass  # the other end is gone, or has sent what no member sends
        finally:
            self._strangers.pop(writer, None)
            if room is not None:
                room.members.discard(writer)
            else:
                self.turned_away += 1
            writer.close()

    def _expect(self, writer: asyncio.StreamWriter) -> None:
        """Demand a proof of a connection that may have come over the network; the oldest such one goes when there are
        too many."""
        # Words are small and awaited; asyncio sets this option only on sockets that it has made itself.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._strangers[writer] = None
        while len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()

    async def _known(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Room | None:
        """The room of a connection that has proven to be a member's; None for any other."""
        asked = nonce()
        writer.write(asked)
        async with asyncio.timeout(CHALLENGE_S):
            (length,) = HELLO.unpack(await reader.readexactly(HELLO.size))
            if length > MOST_NAME_BYTES:
                return None
            name = await reader.readexactly(length)
            answer = await reader.readexactly(NONCE_BYTES + TAG_BYTES)
        theirs, tag = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        room = self._rooms.get(name.decode())
        if room is None:
            return None
        seal = Seal(room.secret, name.decode())
        if not seal.fits(tag, MEMBER, asked, theirs):
            return None
        writer.write(seal.tag(STORE, theirs, asked))
        self._strangers.pop(writer, None)
        room.members.add(writer)
        return room

    async def _answer(self, room: _Room, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind, place_bytes, key_bytes, word_bytes = FRAME.unpack(await reader.readexactly(FRAME.size))
        # Place and key need no check: 16 bits bound their lengths.
        if word_bytes > MOST_BYTES:
            raise ValueError("no word is so long")
        place = MeetingPlace.read((await reader.readexactly(place_bytes)).decode())
        key = (await reader.readexactly(key_bytes)).decode()
        word = await reader.readexactly(word_bytes)
        meeting = room.meeting(place)
        if meeting is None:
            _say(writer, OVER, b"")
        elif kind == SET:
            _say(writer, HEARD if room.put(meeting, key, word) else OVER, b"")
        elif kind == GET:
            # Answered before the next is read: `StoreConnection.ask` matches answers by their order.
            found = meeting.words.get(key)
            _say(writer, HEARD, await self._awaited(meeting, key) if found is None else found)
        # A connection that does not read its answers gets no further ones to pile up here.
        await writer.drain()

    async def _awaited(self, meeting: _Meeting, key: str) -> bytes:
        waiting = self._loop.create_future()
        meeting.awaited[key].append(waiting)
        async with asyncio.timeout(WAIT_S):
            found: bytes = await waiting
        return found


def _listening(path: Path) -> socket.socket:
    """A Unix socket to which this account alone may connect."""
    path.unlink(missing_ok=True)  # of one that had this port before, and was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    # Nobody can have connected before this: a socket that does not listen yet refuses everybody.
    path.chmod(0o600)
    return listener


def _is_local(one: socket.socket) -> bool:
    return one.family == socket.AF_UNIX


def _say(writer: asyncio.StreamWriter, kind: int, word: bytes) -> None:
    writer.write(FRAME.pack(kind, 0, 0, len(word)) + word)
