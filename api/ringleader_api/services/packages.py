"""Uploaded working directories: streamed to disk, hashed, checked entry by entry, stored under their hash."""

import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from anyio import to_thread

from ringleader.wire import package
from ringleader.wire.views import View
from ringleader_api.clock import Clock
from ringleader_api.problems import NotFound, Unprocessable
from ringleader_api.store import Store
from ringleader_api.store.tables import Package

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class PackageView(View):
    """A stored package."""

    name: str
    size_bytes: int


class Packages:
    """Files lie in RINGLEADER_HOME/packages; what lies there has been checked."""

    def __init__(self, store: Store, now: Clock, home: Path) -> None:
        self._store = store
        self._now = now
        self._folder = home / "packages"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._folder.glob(".upload-*"):
            leftover.unlink()

    def find(self, name: str) -> PackageView:
        """Raises NotFound."""
        digest = _digest(name)
        with self._store.read() as session:
            row = session.get(Package, digest)
        if row is None:
            raise NotFound(f"there is no package {name}.", hint="Upload it with PUT.")
        return PackageView(name=f"sha256:{digest}", size_bytes=row.size_bytes)

    def read(self, digest: str) -> bytes:
        """The packed bytes."""
        return (self._folder / f"{digest}.zip").read_bytes()

    async def take(self, name: str, chunks: AsyncIterator[bytes]) -> tuple[PackageView, bool]:
        """Store an upload; returns it and whether it is new.

        Raises:
            Unprocessable: the bytes have another hash.
            PackageRefused: naming the entry that must not be unpacked.
        """
        digest = _digest(name)
        partial = Path(tempfile.mkstemp(prefix=".upload-", dir=self._folder)[1])
        try:
            found, size_bytes = await _receive(partial, chunks)
            if found != digest:
                raise Unprocessable(
                    f"the uploaded bytes have the hash {found}, not {digest}.",
                    hint="Upload again.",
                    code="wrong_hash",
                )
            await to_thread.run_sync(package.check, partial)
            new = await to_thread.run_sync(self._keep, partial, digest, size_bytes)
        finally:
            partial.unlink(missing_ok=True)
        return PackageView(name=f"sha256:{digest}", size_bytes=size_bytes), new

    def _keep(self, partial: Path, digest: str, size_bytes: int) -> bool:
        partial.replace(self._folder / f"{digest}.zip")
        with self._store.write() as session:
            new = session.get(Package, digest) is None
            session.merge(Package(sha256=digest, size_bytes=size_bytes, created_at=self._now()))
        return new


def _digest(name: str) -> str:
    match = _DIGEST.fullmatch(name)
    if match is None:
        raise Unprocessable(f"{name!r} is no SHA-256.", hint="64 hex digits, lower case.", code="bad_digest")
    return match[1]


async def _receive(path: Path, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
    hashed, size_bytes = hashlib.sha256(), 0
    with path.open("wb") as file:
        async for chunk in chunks:
            await to_thread.run_sync(file.write, chunk)
            hashed.update(chunk)
            size_bytes += len(chunk)
        file.flush()
        await to_thread.run_sync(os.fsync, file.fileno())
    return hashed.hexdigest(), size_bytes
