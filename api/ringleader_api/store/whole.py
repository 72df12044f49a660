"""The check that a database is the one this home was left with, made at the start, before anything is written to it."""

import errno
import sqlite3
from pathlib import Path

from alembic.migration import MigrationContext
from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from ringleader.errors import RingleaderError
from ringleader_api.log import Log

OF_JOBS = ("jobs", "checkpoints", "packages")
"""The folders of a home in which jobs leave files."""


class DatabaseUnavailable(RingleaderError):
    """The database takes nothing now: no room, no lock, no answer."""

    code = "database_unavailable"


class DatabaseDamaged(RingleaderError):
    """The database's file cannot be read."""

    code = "database_damaged"


class DiskFull(RingleaderError):
    """A file of the home finds no room."""

    code = "disk_full"


class DatabaseLost(RingleaderError):
    """The home has files of jobs, the database knows of none."""

    code = "database_lost"


def require_whole(engine: Engine, home: Path) -> None:
    """Check the database of a home. A gigabyte takes two seconds of a busy core.

    Raises:
        DatabaseDamaged: its file is cut, overwritten or something else.
        DatabaseLost: it has no tables, and the home has folders of jobs: a new one would know nothing of them.
        DatabaseUnavailable: it cannot be looked at now.
    """
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                # Not `integrity_check`, which compares each index with its table, too; 1: the first finding
                # is enough.
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if found != "ok":
                    raise _damaged(_name(engine), str(found))
            begun = MigrationContext.configure(connection).get_current_revision() is not None
    except SQLAlchemyError as error:
        raise trouble_of(error, _name(engine)) or error from None
    left = [home / name for name in OF_JOBS if any((home / name).glob("*"))]
    if not begun and left:
        raise DatabaseLost(
            f"{_name(engine)} is empty or missing, but {left[0]} holds files of jobs that a new database would not "
            "know.",
            hint="Restore the database from a backup. To start over without those jobs, move "
            f"{' and '.join(map(str, left))} away.",
        )


def trouble_of(error: Exception, database: str = "the database") -> RingleaderError | None:
    """The trouble that an error means for whoever waits for the database, or for the disk beside it; None: it is
    neither's."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return DiskFull(f"the disk has no space left ({error.strerror}).", hint=_HINTS["full"])
    if type(error) is DatabaseError:  # its subclasses say what was wrong with a statement
        return _damaged(database, str(error.orig))
    if not isinstance(error, OperationalError | NoConnection) or _misspelt(error):
        return None
    words = str(error.orig if isinstance(error, DBAPIError) else error).splitlines()[0]
    return DatabaseUnavailable(
        f"the database is not available: {words}.",
        hint=next((hint for said, hint in _HINTS.items() if said in words), _LATER),
    )


def _misspelt(error: SQLAlchemyError) -> bool:
    """Whether SQLite only means that a statement is wrong, such as one that names a table that does not exist."""
    # Its driver has one class for both: only the code tells a wrong statement from a locked or full database.
    cause = error.orig if isinstance(error, DBAPIError) else None
    return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR


def log_failure(log: Log, event: str, error: Exception, **about: object) -> RingleaderError | None:
    """Log the exception that is being handled, with its traceback unless the database or its disk refuses. Returns that
    trouble, or None."""
    trouble = trouble_of(error)
    if trouble is None:
        log.exception(event, **about)
    else:
        # In one line: such trouble lasts, and is no mistake of ours.
        log.warning(event, **about, why=trouble.message)
    return trouble


# A quota, or a limit on the size of a file, refuses a write as a full disk does.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LATER = "Try again once it is back. Running jobs continue, and their reports wait on their nodes."
_HINTS = {
    "full": f"Free space on the disk that holds RINGLEADER_HOME. {_LATER}",
    "locked": f"Another process has locked it: close whatever else has opened ringleader.db. {_LATER}",
    "readonly": f"Check the permissions of RINGLEADER_HOME, and whether its disk is mounted read-only. {_LATER}",
}
"""The hints, by the words of SQLite's message."""


def _damaged(database: str, found: str) -> DatabaseDamaged:
    return DatabaseDamaged(
        f"{database} is damaged: {found.rstrip('.')}.",
        hint="Nothing was changed. Stop the control plane, keep a copy of the file and its -wal file, and restore a "
        "backup. Without one, `sqlite3 ringleader.db .recover | sqlite3 mended.db` recovers what can be read.",
    )


def _name(engine: Engine) -> str:
    return (engine.url.database or "") if engine.dialect.name == "sqlite" else "the database"
