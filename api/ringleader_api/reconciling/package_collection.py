"""The removal of packages that no job refers to any more.

In two transactions, each over the locked row. The first gives the package up, if it finds no job once it has the lock:
a submission holds the row `FOR SHARE` until its job is stored, so either we see the job or it finds the package given
up. The second removes file and row, unless an upload has brought the package back. Whoever dies in between leaves a
package that is given up, and the next round goes on with it.
"""

import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from ringleader_api.log import Log
from ringleader_api.services.packages import LEFTOVER_S, file_of, folder_of
from ringleader_api.store import Transactions
from ringleader_api.store.tables import Job, Package

log = Log("ringleader.packages")


def collect(store: Transactions, home: Path, now: datetime, kept: timedelta) -> None:
    """Remove the packages that no job refers to and that nobody has uploaded or asked for during `kept`."""
    before = now - kept
    referred = exists().where(Job.package == Package.sha256)
    over = or_(Package.given_up_at.is_not(None), (Package.used_at < before) & ~referred)
    # Without locks: only candidates, each looked at again under its lock.
    with store.read() as session:
        found = session.scalars(select(Package.sha256).where(over).order_by(Package.sha256)).all()
    for digest in found:
        with store.write() as session:
            _give_up(session, digest, before, now)
        with store.write() as session:
            _remove(session, digest, home)
    _sweep(store, home)


def _give_up(session: Session, digest: str, before: datetime, now: datetime) -> None:
    row = _locked(session, digest)
    # A statement of its own: it sees what was committed before we had the lock.
    if row is None or session.scalar(select(Job.id).where(Job.package == digest).limit(1)) is not None:
        return
    # Control planes of the version before know no `used_at`: what they store meanwhile has the column's default, 1970.
    if max(row.used_at, row.created_at) < before:
        row.given_up_at = now


def _remove(session: Session, digest: str, home: Path) -> None:
    row = _locked(session, digest)
    if row is None or row.given_up_at is None:
        return
    try:
        file_of(home, digest).unlink(missing_ok=True)
    except OSError as error:
        # The row stays, given up: no job can refer to it, and the next round tries its file again.
        log.warning("package.stays", package=digest, error=str(error))
        return
    session.delete(row)
    log.info("package.removed", package=digest, size_bytes=row.size_bytes)


def _locked(session: Session, digest: str) -> Package | None:
    """The row, locked; None where it is gone, or in use at this moment."""
    return session.get(Package, digest, with_for_update={"skip_locked": True})


def _sweep(store: Transactions, home: Path) -> None:
    """Remove the files of uploads whose process died before the row was stored."""
    with store.read() as session:
        known = set(session.scalars(select(Package.sha256)))
    for file in folder_of(home).glob("*.zip"):
        with suppress(FileNotFoundError):  # others over this home clean up too
            if file.stem not in known and time.time() - file.stat().st_mtime > LEFTOVER_S:
                # Within a write: on SQLite that keeps an upload from storing its row between this look and the unlink.
                with store.write() as session:
                    if session.get(Package, file.stem) is None:
                        file.unlink()
