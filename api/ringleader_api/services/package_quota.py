"""The quota on packages of one sender: a number and a size, broken-off uploads included."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from ringleader_api.problems import Conflict
from ringleader_api.store import Store
from ringleader_api.store.tables import Package

AGAIN_BYTES = 8 << 20
"""The bytes after which an upload is checked again: others of the same sender may be under way."""


class PackagesUsedUp(Conflict):
    """The sender has stored as much as one may."""

    code = "packages_used_up"


@dataclass(frozen=True, slots=True)
class PackageQuota:
    """The most `packages` and `size_bytes` of one sender, whether jobs refer to them or not."""

    packages: int
    size_bytes: int


class Allotted:
    """Checks uploads against the quota of their sender."""

    def __init__(self, store: Store, folder: Path, quota: PackageQuota) -> None:
        self._store = store
        self._folder = folder
        self._quota = quota

    def partial(self, digest: str, who: str) -> Path:
        """The file that an upload is received into."""
        # A hash of the name: names of users may hold what a file name may not.
        # Each sender's own, so that nobody can put wrong bytes before another's.
        return self._folder / f".upload-{digest}-{_mark(who)}"

    def check(self, who: str) -> None:
        """Refuse a sender who is over the quota, with all uploads under way. Raises PackagesUsedUp."""
        begun = []  # first: one that is stored meanwhile counts twice rather than not at all
        for partial in self._folder.glob(f".upload-*-{_mark(who)}"):
            with suppress(FileNotFoundError):
                begun.append(partial.stat().st_size)
        query = select(func.count(), func.coalesce(func.sum(Package.size_bytes), 0))
        with self._store.look() as session:
            stored, size_bytes = session.execute(query.where(Package.sender == who)).one()
        packages, size_bytes = stored + len(begun), int(size_bytes) + sum(begun)
        if packages > self._quota.packages:
            raise _used_up(
                who, f"{packages} packages", f"{self._quota.packages}", "RINGLEADER_PACKAGES_PER_USER"
            )
        if size_bytes > self._quota.size_bytes:
            most = f"{self._quota.size_bytes} bytes"
            raise _used_up(who, f"{size_bytes} bytes of packages", most, "RINGLEADER_PACKAGE_BYTES_PER_USER")


def _mark(who: str) -> str:
    return hashlib.sha256(who.encode()).hexdigest()[:16]


def _used_up(who: str, would: str, most: str, setting: str) -> PackagesUsedUp:
    return PackagesUsedUp(
        f"this upload would give {who} {would}; the limit is {most}.",
        hint="Delete jobs whose packages are no longer needed: a package that no job uses is removed after "
        f"RINGLEADER_PACKAGES_KEPT_DAYS, an interrupted upload after a day. Or ask an operator to raise {setting}.",
    )
