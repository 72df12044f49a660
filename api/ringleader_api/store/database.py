"""The database: short transactions, one writer at a time on SQLite, migrations run at start."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from ringleader_api.store import audit

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 10_000


class Store:
    """Hands out sessions. `version` grows with every committed write, for those who wait for news."""

    def __init__(self, url: str) -> None:
        self.version = 0
        self._engine = create_engine(url, pool_size=16, max_overflow=48)
        if self._engine.dialect.name == "sqlite":
            _tune_sqlite(self._engine)
        self._writer = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        # SQLite has one writer; queueing here is fair and free, its busy handler polls.
        self._one_writer = threading.Lock()

    @classmethod
    def at(cls, home: Path) -> "Store":
        """The SQLite database of a home folder, migrated to the newest shape."""
        store = cls(f"sqlite:///{home / 'ringleader.db'}")
        store.migrate()
        return store

    def migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        with self._writer.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads; what it loaded stays usable after it."""
        with Session(self._engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction: committed at the end of the block, rolled back when it raises. Never nested.

        The first one of a request holds the row of the audit log that names who asked for it.
        """
        with self._one_writer:
            with Session(self._writer, expire_on_commit=False) as session, session.begin():
                yield session
                deed = audit.add_to(session)
            if deed is not None:
                deed.recorded = True
            self.version += 1

    def ping(self) -> None:
        """Raise where the database does not answer."""
        with self.read() as session:
            session.execute(text("SELECT 1 FROM jobs LIMIT 1"))

    def engine(self) -> Engine:
        return self._engine

    def close(self) -> None:
        self._engine.dispose()


def _tune_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver's guess takes locks too late
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
