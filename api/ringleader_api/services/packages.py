"""Uploaded working directories: streamed to disk, hashed, checked entry by entry, stored under their hash."""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from anyio import to_thread
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader.wire import package
from ringleader.wire.views import View
from ringleader_api.clock import Clock
from ringleader_api.problems import Conflict, NotFound, TooLarge, Unprocessable
from ringleader_api.services.package_quota import AGAIN_BYTES, Allotted, PackageQuota, PackagesUsedUp
from ringleader_api.store import Store
from ringleader_api.store.tables import Package

LEFTOVER_S = 24 * 3600.0
"""The seconds for which a broken-off upload waits for its rest."""
KEPT = timedelta(days=1)

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class PackageLost(RingleaderError):
    """A job's package is not where it was stored."""

    code = "package_lost"


class PackageView(View):
    """A stored package."""

    name: str
    size_bytes: int


class Packages:
    """The packages, files in RINGLEADER_HOME/packages; all that lie there have been checked.

    `kept` is how long a package stays that no job refers to, `quota` bounds what one sender leaves.
    """

    def __init__(
        self,
        store: Store,
        now: Clock,
        home: Path,
        most_bytes: int = package.MAX_PACKED_BYTES,
        kept: timedelta = KEPT,
        *,
        quota: PackageQuota,
    ) -> None:
        self._store = store
        self._now = now
        self._most_bytes = most_bytes
        self._kept = kept
        self._home = home
        self._folder = folder_of(home)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._allotted = Allotted(store, self._folder, quota)

    def find(self, name: str) -> PackageView:
        """The package `name`. It stays for half of `kept` at least. Raises NotFound."""
        digest = _digest(name)
        with self._store.read() as session:
            row = session.get(Package, digest)
        # Only past half of the time: not every question is worth a write.
        if row is not None and self._now() - row.used_at > self._kept / 2:
            with self._store.write() as session:
                row = session.get(Package, digest, with_for_update=True)
                if row is not None:
                    # As if it were used: whoever asks means to submit.
                    row.used_at = self._now()
        if row is None or row.given_up_at is not None or not file_of(self._home, digest).exists():
            raise NotFound(f"there is no package {name}.", hint="Upload it with PUT to this address.")
        return PackageView(name=f"sha256:{digest}", size_bytes=row.size_bytes)

    def read(self, digest: str) -> bytes:
        """The packed bytes. Raises PackageLost."""
        path = file_of(self._home, digest)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise PackageLost(
                f"the job's package is missing: {path} does not exist.",
                hint="Submit from the same folder again: that uploads the package, and this job starts as well.",
            ) from None

    def begun(self, name: str, who: str) -> int:
        """The bytes stored of this sender's broken-off upload; 0 where there is none."""
        partial = self._allotted.partial(_digest(name), who)
        return partial.stat().st_size if partial.exists() else 0

    async def take(
        self, name: str, who: str, chunks: AsyncIterator[bytes], offset: int | None = None
    ) -> tuple[PackageView, bool]:
        """Store an upload, or the rest of a broken-off one; returns the package, and whether it is new.

        Args:
            offset: where the bytes begin; None: at the beginning, whatever is here.

        Raises:
            Conflict: they do not begin where the stored ones end, or the same sender is uploading the same thing.
            TooLarge: the whole is larger than a package may be.
            PackagesUsedUp: the sender has left as much here as one may.
            Unprocessable: the bytes have another hash.
            PackageRefused: naming the entry that must not be unpacked.
        """
        digest = _digest(name)
        partial = self._allotted.partial(digest, who)
        with _alone(partial) as file:
            stored = os.fstat(file.fileno()).st_size
            if offset is None:
                # From the beginning: an older part may be of other bytes under the same hash.
                file.truncate(stored := 0)
            elif offset != stored:
                raise _begins_elsewhere(offset, stored)
            try:
                size_bytes = await self._receive(file, stored, chunks, who)
            # Whatever came of it would count against the sender's quota for a day.
            except (TooLarge, PackagesUsedUp):
                _remove(partial, file)
                raise
            # In a thread: hashing and unpacking a gigabyte would hold up the event loop.
            try:
                await to_thread.run_sync(_check, partial, digest)
                new = await to_thread.run_sync(self._keep, partial, digest, size_bytes, who)
            finally:  # nothing of it would make a right package
                _remove(partial, file)
        return PackageView(name=f"sha256:{digest}", size_bytes=size_bytes), new

    async def _receive(self, file: BinaryIO, stored: int, chunks: AsyncIterator[bytes], who: str) -> int:
        """Append the body to the file; where the sender breaks off, the bytes so far stay."""
        await to_thread.run_sync(
            self._allotted.check, who
        )  # also of a body that breaks off before its first byte
        look_at = stored + AGAIN_BYTES
        async for chunk in chunks:
            if stored >= look_at:
                await to_thread.run_sync(self._allotted.check, who)
                look_at = stored + AGAIN_BYTES
            stored += len(chunk)
            if stored > self._most_bytes:
                raise TooLarge(self._most_bytes)
            await to_thread.run_sync(_write, file, chunk)
        # On the disk before the name: after a power cut a package must be whole or not there.
        await to_thread.run_sync(_sync, file)
        # Once more at the end: several small uploads may each have passed the checks in between.
        await to_thread.run_sync(self._allotted.check, who)
        return stored

    def _keep(self, partial: Path, digest: str, size_bytes: int, who: str) -> bool:
        """Give the file its name as a package."""
        now = self._now()
        new = False
        with self._store.write() as session:
            # Again after the insert: it takes the lock, also where another sender's row was there first.
            # Under the lock of the row, which the removal of packages takes as well.
            while (row := session.get(Package, digest, with_for_update=True)) is None:
                values = {"sha256": digest, "size_bytes": size_bytes, "sender": who}
                new = _insert(session, **values, created_at=now, used_at=now)
            # An upload brings back a package that was being removed; it counts for whoever sent it last.
            if row.given_up_at is not None:
                new, row.sender = True, who
            row.used_at, row.given_up_at = now, None
            os.utime(partial)  # a sweep that does not see the row yet must not take it for a leftover
            partial.replace(file_of(self._home, digest))
        return new


def _insert(session: Session, **values: Any) -> bool:
    """Insert the row; False where another sender of the same bytes was first."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    first = dialect.insert(Package).values(values).on_conflict_do_nothing().returning(Package.sha256)
    # By then this has waited for that sender's transaction.
    return session.scalar(first) is not None


def there(session: Session, name: str, *, hold: bool = False) -> bool:
    """Whether `sha256:…` may be referred to; with `hold` it stays so until the transaction's end."""
    digest = name.removeprefix("sha256:")
    query = select(Package.sha256).where(Package.sha256 == digest, Package.given_up_at.is_(None))
    # A shared lock: submissions with one package do not wait for each other, only its removal waits for them.
    return session.scalar(query.with_for_update(read=True) if hold else query) is not None


def sweep(home: Path) -> None:
    """Remove uploads that broke off too long ago."""
    for leftover in folder_of(home).glob(".upload-*"):
        with suppress(
            FileNotFoundError, Conflict
        ):  # others over this home clean up too; or it goes on just now
            if time.time() - leftover.stat().st_mtime > LEFTOVER_S:
                with _alone(leftover):
                    leftover.unlink()


def folder_of(home: Path) -> Path:
    return home / "packages"


def file_of(home: Path, digest: str) -> Path:
    return folder_of(home) / f"{digest}.zip"


def _digest(name: str) -> str:
    match = _DIGEST.fullmatch(name)
    if match is None:
        raise Unprocessable(
            f"{name!r} is not a SHA-256.", hint="Send 64 lowercase hex digits.", code="bad_digest"
        )
    return match[1]


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """Open the file for appending, for one request at a time."""
    while True:
        # Unbuffered: an upload goes on at the length of the file, so what has come must be in it.
        with path.open("ab", buffering=0) as file:
            try:
                # Not `lockf`, whose locks belong to the process: two requests of this one have to exclude
                # each other, too.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Conflict(
                    "another upload of this package by the same user is in progress.", code="upload_under_way"
                ) from None
            # Between open and lock the last holder may have removed or renamed it: then this is no upload's file.
            if _lies_at(path, file):
                try:
                    yield file
                finally:
                    # Refused before its first byte, such as the rest of an upload that another request has
                    # completed meanwhile: nothing is there to go on from.
                    if not os.fstat(file.fileno()).st_size:
                        _remove(path, file)
                return


def _remove(path: Path, file: BinaryIO) -> None:
    """Remove the file only while it is still this one."""
    # Once it is named as a package, the next upload may have begun in its place.
    if _lies_at(path, file):
        path.unlink()


def _lies_at(path: Path, file: BinaryIO) -> bool:
    """Whether the opened file is still the one of that name."""
    try:
        # Its last holder may have stored or removed it, and another one may be there.
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write(file: BinaryIO, chunk: bytes) -> None:
    """Write all of the chunk."""
    left = memoryview(chunk)
    while left:
        # A disk that is nearly full takes a part without an error, and refuses the next.
        left = left[file.write(left) :]


def _sync(file: BinaryIO) -> None:
    os.fsync(file.fileno())


def _check(path: Path, digest: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise Unprocessable(
            f"the uploaded bytes have the hash {found}, not {digest}.",
            hint="Upload the package under the SHA-256 of the bytes sent.",
            code="wrong_hash",
        )
    package.check(path)


def _begins_elsewhere(offset: int, stored: int) -> Conflict:
    finding = {
        "pointer": "header: Upload-Offset",
        "value": stored,
        "allowed": str(stored),
        "message": f"{stored} bytes are stored",
    }
    return Conflict(
        f"{stored} bytes of this upload are stored, but Upload-Offset is {offset}.",
        code="bad_upload",
        errors=[finding],
    )
