"""Leases: a role that only one of several control planes may have is held by one process at a time.

On SQLite the kernel keeps the lock of a file and lets go of it with the process. On PostgreSQL a row names the holder
until a time of the database's clock; each change of hands adds one to its token, and whatever the holder stores is
stored in a transaction that finds its own token there (`Fenced`). So one that was frozen and outlived its time changes
nothing, and its next question tells it so.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader_api.log import Log
from ringleader_api.store.database import Store
from ringleader_api.store.tables import RoleLeaseRow

log = Log("ringleader.lease")
RENEWED_AT = 1 / 3
"""The share of a lease's time after which its holder renews it."""


class RoleLeaseLost(RingleaderError):
    """Another control plane holds the role now; it does the work."""

    code = "lease_lost"


class RoleLease(Protocol):
    """A role that one process holds at a time."""

    def hold(self) -> bool:
        """Take or keep the role; False while another process has it."""

    def require(self) -> None:
        """Raise RoleLeaseLost unless the role is held now; for acts that cannot be undone."""

    def fence(self, session: Session) -> None:
        """Raise RoleLeaseLost unless the role is still ours when the transaction commits."""

    def let_go(self) -> None:
        """Give up the role; another process may take it at once."""


class FileLease:
    """A lock on a file, for a database that only one machine uses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def hold(self) -> bool:
        if self._file is not None:
            return True
        # Held by the descriptor: the kernel lets go of the lock when the process dies, however it dies.
        file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def require(self) -> None:
        # Looked at only: a lock that is free now may have been another's since we let it go.
        if self._file is None:
            raise RoleLeaseLost(f"this process has not locked {self._path.name}.")

    def fence(self, session: Session) -> None:
        self.require()

    def let_go(self) -> None:
        if self._file is not None:
            # `lockf` locks go with any close of the file in this process, so nothing else may open it here.
            os.close(self._file)
            self._file = None


def database_now(session: Session) -> datetime:
    """The database's clock: the clocks of replicas need not agree."""
    # Not `now()`, which is when the transaction began: it may have waited for the row since.
    now = session.scalar(select(func.timezone("utc", func.clock_timestamp())))
    assert isinstance(now, datetime)
    return now.replace(tzinfo=UTC)


class RowLease:
    """A row with the holder's name, its end, and a fencing token that grows with every change of holder.

    Args:
        lasts_s: how long the role stays with a holder that is silent.
        now: the clock that ends are told by.
        now_s: this process's own, for how long an answer of the database is good.
    """

    def __init__(
        self,
        store: Store,
        role: str,
        lasts_s: float,
        now: Callable[[Session], datetime] = database_now,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._role = role
        self._lasts_s = lasts_s
        self._now = now
        self._now_s = now_s
        # The random part tells a new process from the one before with the same pid on this machine.
        self._me = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}"
        self.token = 0
        self._asked_at = float("-inf")

    def hold(self) -> bool:
        if self.token and self._now_s() - self._asked_at < self._lasts_s * RENEWED_AT:
            return True
        # Before the question: the answer is as old as its question, never younger.
        asked_at = self._now_s()
        try:
            token = self._ask()
        except IntegrityError:  # somebody else was first to make the row
            token = 0
        if token != self.token:
            log.info("lease.taken" if token else "lease.lost", role=self._role, token=token or self.token)
        self.token, self._asked_at = token, asked_at
        return token > 0

    def require(self) -> None:
        # Past its time the role may have been another's meanwhile, even if the row is ours again.
        if not self.token or self._now_s() - self._asked_at >= self._lasts_s or not self.hold():
            raise self._lost()

    def fence(self, session: Session) -> None:
        # FOR SHARE until the commit: a new holder has to wait with its token for this transaction.
        mine = select(RoleLeaseRow.role).where(
            RoleLeaseRow.role == self._role, RoleLeaseRow.token == self.token
        )
        if not self.token or session.scalar(mine.with_for_update(read=True)) is None:
            raise self._lost()

    def let_go(self) -> None:
        if not self.token:
            return
        with self._store.write() as session:
            row = session.get(RoleLeaseRow, self._role, with_for_update=True)
            # Only our own: the row may be another's by now, whose lease must not end.
            if row is not None and row.token == self.token:
                row.expires_at = self._now(session)
        self.token = 0

    def _lost(self) -> RoleLeaseLost:
        self.token = 0  # to be asked for anew
        return RoleLeaseLost(f"another control plane is the {self._role} now.")

    def _ask(self) -> int:
        """Our token, or 0 while the role is another's."""
        with self._store.write() as session:
            row = session.get(RoleLeaseRow, self._role, with_for_update=True)
            now = self._now(session)
            ends_at = now + timedelta(seconds=self._lasts_s)
            if row is None:
                session.add(RoleLeaseRow(role=self._role, holder=self._me, token=1, expires_at=ends_at))
                return 1
            # Our own token is still there: nobody has had the role meanwhile, so it goes on even past its
            # time.
            if row.token != self.token:
                if row.expires_at > now:
                    return 0
                row.holder, row.token = self._me, row.token + 1
            row.expires_at = ends_at
            return row.token


class Fenced:
    """A store whose writes belong to a role: none is committed once the role is another process's."""

    def __init__(self, store: Store, lease: RoleLease) -> None:
        self._store = store
        self._lease = lease
        self.read = store.read

    @property
    def version(self) -> int:
        return self._store.version

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction of the role, as `Store.write`. Raises RoleLeaseLost."""
        with self._store.write() as session:
            self._lease.fence(session)
            yield session


def lease_for(store: Store, home: Path, role: str, lasts_s: float) -> RoleLease:
    """The lease that suits the database."""
    return RowLease(store, role, lasts_s) if store.shared else FileLease(home / f".{role}.lock")
