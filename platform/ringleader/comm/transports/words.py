"""The words that members tell each other before they are connected: entries of a store, each under the meeting's seal.

Whoever can write into the store, or answers in its place, can make a meeting fail, and no more than that: a word that
its writer has no key for is never believed.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ringleader.comm.seal import TAG_BYTES, Seal
from ringleader.errors import WordRefused

WORD = b"word"


class MeetingStore(Protocol):
    """One meeting's part of a store."""

    def set(self, key: str, value: bytes, /) -> None: ...

    def read(self, keys: Sequence[str], /) -> list[bytes]:
        """The words under these keys; waits until all are there. Raises RuntimeError or OSError when that takes too
        long."""


class MemberStore(Store):
    """One meeting's part of a store, as members use it, and gloo and NCCL do.

    Attributes:
        seal: the meeting's seal.
    """

    def __init__(self, corner: MeetingStore, seal: Seal) -> None:
        super().__init__()
        self._corner = corner
        self.seal = seal

    def set(self, key: str, value: str | bytes) -> None:
        word = value.encode() if isinstance(value, str) else bytes(value)
        # The key is under the tag too: a word cannot be passed off as that of another key.
        self._corner.set(key, self.seal.tag(WORD, key.encode(), word) + word)

    def get(self, key: str) -> bytes:
        return self.read([key])[0]

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """The words of members under these keys; waits for them.

        Raises:
            WordRefused: one of them was not written by a member.
            RuntimeError, OSError: one did not come in time.
        """
        return [self._opened(key, found) for key, found in zip(keys, self._corner.read(keys), strict=True)]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Do nothing: callers read the word next, and `read` waits."""

    def _opened(self, key: str, found: bytes) -> bytes:
        tag, word = found[:TAG_BYTES], found[TAG_BYTES:]
        if not self.seal.fits(tag, WORD, key.encode(), word):
            raise WordRefused(key)
        return word


class LibraryStore:
    """A connection to torch's TCPStore, which has no credential: for measurements and tests."""

    def __init__(self, host: str, port: int, patience_s: float) -> None:
        self._client: Any = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience_s))

    def corner(self, prefix: str, patience_s: float) -> MeetingStore:
        store = PrefixStore(prefix, self._client)
        store.set_timeout(timedelta(seconds=patience_s))
        return _LibraryCorner(store)

    @property
    def lost(self) -> bool:
        """Always False: torch does not tell."""
        return False

    def close(self) -> None:
        self._client = None


class _LibraryCorner:
    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def read(self, keys: Sequence[str]) -> list[bytes]:
        return [bytes(self._store.get(key)) for key in keys]
