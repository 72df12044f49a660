"""A member's connection to the rendezvous store, and the frames that the two exchange."""

import os
import re
import select
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringleader.comm.seal import NONCE_BYTES, TAG_BYTES, Seal, nonce
from ringleader.errors import WordRefused

HELLO = struct.Struct("<H")
FRAME = struct.Struct("<BHHI")
"""The head of a frame: kind, then the bytes of place, key and word, which follow."""

SET, GET, HEARD, OVER = range(4)
MEMBER, STORE = b"member", b"store"
MOST_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
# ASCII, as `\d` would also match the digits of other scripts: two names for one number.
_PLACE = re.compile(r"(.*?)(\d{1,9}(?:\.\d{1,9})*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """The name of one meeting in a room: `line` is the series it belongs to, `number` its number in there."""

    line: str
    number: tuple[int, ...]

    @staticmethod
    def read(text: str) -> "MeetingPlace":
        """Parse a meeting's name. Raises ValueError where the text names none."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} names no meeting")
        return MeetingPlace(found[1], tuple(map(int, found[2].split("."))))


def local_socket(folder: Path, port: int) -> Path:
    """The Unix socket at which the store that listens on `port` takes connections of its own account on its own
    node."""
    return folder / f"meet-{port}"


class StoreConnection:
    """A member's connection to one room. Calls of several threads take turns.

    Args:
        folder: the folder of the store's socket, used if the store is on this node and of this account. Otherwise the
            member goes to `host` and `port`.

    Raises:
        WordRefused: the store that answers does not have the secret.
        OSError: nobody answers, or the room is closed.
    """

    def __init__(
        self, host: str, port: int, patience_s: float, *, room: str, secret: bytes, folder: Path | None = None
    ) -> None:
        self._lock = threading.Lock()
        near = None if folder is None else _near(local_socket(folder, port), patience_s)
        self._socket = near or _far(host, port, patience_s)
        try:
            self._introduce(room, Seal(secret, room))
        except BaseException:
            self._socket.close()
            raise

    def corner(self, prefix: str, patience_s: float) -> "RoomStore":
        self._socket.settimeout(patience_s)
        return RoomStore(self, prefix.partition("/")[2])

    @property
    def lost(self) -> bool:
        """Whether the other end is gone."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        # The store sends nothing unasked, so anything to read is the end of the connection.
        return bool(waiting.poll(0))

    def close(self) -> None:
        self._socket.close()

    def ask(self, kind: int, place: str, asked: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Send requests and return the answers, in order. Raises OSError, also where the meeting is over."""
        frames = []
        for key, word in asked:
            where, name = place.encode(), key.encode()
            frames.append(FRAME.pack(kind, len(where), len(name), len(word)) + where + name + word)
        # One caller at a time: answers name no key, they match requests by their order.
        with self._lock:
            self._socket.sendall(b"".join(frames))
            return [self._heard() for _ in frames]

    def _introduce(self, room: str, seal: Seal) -> None:
        theirs, mine, name = self._exactly(NONCE_BYTES), nonce(), room.encode()
        self._socket.sendall(HELLO.pack(len(name)) + name + mine + seal.tag(MEMBER, theirs, mine))
        # Before any word: a store that cannot prove itself learns no more than a nonce and a tag.
        if not seal.fits(self._exactly(TAG_BYTES), STORE, mine, theirs):
            raise WordRefused("store")

    def _heard(self) -> bytes:
        kind, _, _, length = FRAME.unpack(self._exactly(FRAME.size))
        word = self._exactly(length)
        if kind == OVER:
            raise OSError("this meeting is over: a later one has begun, or there is no room for its words")
        return word

    def _exactly(self, length: int) -> bytes:
        read = bytearray()
        while len(read) < length:
            part = self._socket.recv(length - len(read))
            if not part:
                raise ConnectionResetError("the store where members meet has closed the connection")
            read += part
        return bytes(read)


def _near(path: Path, patience_s: float) -> socket.socket | None:
    """A connection to the socket at `path`; None where nobody, or another account, listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(patience_s)
    try:
        connection.connect(str(path))
        said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        # Whoever can create this path could pose as the store: only this account's processes are believed.
        if _CREDENTIALS.unpack(said)[1] == os.geteuid():
            return connection
    except OSError:
        pass  # the store is on another node, or this is another account than the stack's
    connection.close()
    return None


def _far(host: str, port: int, patience_s: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=patience_s)
    # A word is small and somebody waits for it: Nagle's algorithm would hold it back.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class RoomStore:
    """One meeting's words in a room. Implements MeetingStore."""

    def __init__(self, connection: StoreConnection, place: str) -> None:
        self._connection = connection
        self._place = place

    def set(self, key: str, value: bytes) -> None:
        self._connection.ask(SET, self._place, [(key, value)])

    def read(self, keys: Sequence[str]) -> list[bytes]:
        return self._connection.ask(GET, self._place, [(key, b"") for key in keys])
