"""The database: short transactions, one writer at a time on SQLite, row locks on PostgreSQL, migrations at the
start."""

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVarTuple

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, Row, Select, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader_api.store import audit
from ringleader_api.store.listed import fill
from ringleader_api.store.tables import Fact
from ringleader_api.store.whole import require_whole, trouble_of

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 10_000
WRITES = "writes"
PING_EVERY_S = 1.0
LOG_PAGES = 10_000
"""The pages (40 MB) of SQLite's write-ahead log from which a commit copies them into the database, where `copy_log` has
not kept up."""
_MIGRATING = 0x72696E67
"""The advisory lock that serializes the migrations of replicas that start together."""

Found = TypeVarTuple("Found")


class DatabaseNewer(RingleaderError):
    """A newer version has changed the tables in ways that this one does not know."""

    code = "database_newer"


class Transactions(Protocol):
    """The part of a store that code working on rows needs."""

    @property
    def version(self) -> int:
        """A count that grows with every committed write of this process."""

    def read(self) -> AbstractContextManager[Session]: ...

    def write(self) -> AbstractContextManager[Session]: ...


class Store:
    """The sessions of a database. `version` grows with every committed write of this process, for those who wait for
    news."""

    def __init__(self, url: str | URL) -> None:
        self._version = 0
        self._written_s: float | None = None
        address = _with_driver(make_url(url))
        self.shared = address.get_backend_name() != "sqlite"
        """Whether other processes may write too."""
        # `hide_parameters`: errors are logged, and parameters hold tokens' hashes and jobs' environments.
        self._engine = create_engine(
            address, pool_size=16, max_overflow=48, pool_pre_ping=self.shared, hide_parameters=True
        )
        if self.shared:
            _tune_postgresql(self._engine)
        else:
            _tune_sqlite(self._engine)
        # No BEGIN at all: a single statement reads a consistent state by itself.
        self._looker = self._engine.execution_options(begin="")
        # IMMEDIATE: a lock that is upgraded in mid-transaction fails at once, whatever the busy timeout.
        self._writer = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        # SQLite has one writer; queueing here is fair and free, its busy handler polls.
        self._one_writer: AbstractContextManager[Any] = nullcontext() if self.shared else threading.Lock()

    @classmethod
    def at(cls, home: Path, url: str = "") -> "Store":
        """Open the database at `url`, or the SQLite one of a home folder, migrated to the newest tables.

        Raises:
            DatabaseDamaged, DatabaseLost, DatabaseUnavailable: as `require_whole`; nothing was changed.
            DatabaseNewer: as `migrate`.
        """
        store = cls(url or f"sqlite:///{home / 'ringleader.db'}")
        # Before the migration, which would write tables into a file that is damaged or the wrong one.
        require_whole(store._looker, home)
        try:
            store.migrate()
            fill(store.read, store.write)
        except SQLAlchemyError as error:
            raise trouble_of(error) or error from None
        return store

    @property
    def version(self) -> int:
        return self._version

    def migrate(self) -> None:
        """Migrate the tables to those that this version knows, in one transaction.

        Raises:
            DatabaseNewer: they are ahead of it already; nothing was changed.
        """
        with self._writer.begin() as connection:
            if self.shared:
                # Another replica may be migrating: wait, then find the tables up to date.
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATING})"))
            if _is_newest(connection, _scripts()):
                return
            config = migration_config()
            # `env.py` takes this connection: the lock and the migration have to be one transaction.
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads; the objects it loaded stay usable after it."""
        with Session(self._engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def look(self) -> Iterator[Session]:
        """The same for a single statement, for which SQLite needs no transaction."""
        with Session(self._looker, expire_on_commit=False) as session:
            yield session

    def rows(self, query: Select[*Found], **parameters: object) -> Sequence[Row[*Found]]:
        """The rows of one query of columns. It costs a quarter of a session, for queries that every request makes."""
        with self._looker.connect() as connection:
            return connection.execute(query, parameters).all()

    @contextmanager
    def write(self, actions: Sequence[audit.AuditedAction] | None = None) -> Iterator[Session]:
        """A transaction: committed at the end of the block, rolled back when it raises. Never nested.

        The first one of a request holds the row of the audit log that names who asked for it; `actions` are those of
        several requests that it carries out together.
        """
        with self._one_writer:
            made = Session(self._writer, expire_on_commit=False, info={WRITES: True})
            with made as session, session.begin():
                yield session
                # At the end, so that the row names what the services have filled in by then.
                told = audit.add_to(session, audit.current_actions() if actions is None else actions)
            # Only after the commit: a transaction that failed has stored no row.
            for action in told:
                action.recorded = True
            self._version += 1

    def ping(self) -> None:
        """Raise where the database cannot be written: it does not answer, is read-only, or has no room on its disk. One
        row is rewritten and committed once in `PING_EVERY_S`, however often this is called."""
        if self._written_s is not None and time.monotonic() - self._written_s < PING_EVERY_S:
            with self.read() as session:
                # Still a question to the database: it may have gone within the second.
                session.execute(text("SELECT 1 FROM jobs LIMIT 1"))
            return
        # Unset during the try: after a failure the next call must write again rather than trust the last success.
        self._written_s = None
        dialect = postgresql if self.shared else sqlite
        row = dialect.insert(Fact).values(name="written", value=secrets.token_hex(8))
        anew = row.on_conflict_do_update(index_elements=[Fact.name], set_={"value": row.excluded.value})
        with self._one_writer, self._writer.begin() as connection:
            connection.execute(anew)
        self._written_s = time.monotonic()

    def copy_log(self) -> None:
        """Copy what SQLite's write-ahead log holds into the database, beside the commits that go on."""
        # A commit that did it itself would wait for the disk ten times as long, and with it all that wait for their
        # turn to write.
        if not self.shared:
            with self._looker.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    def engine(self) -> Engine:
        return self._engine

    def close(self) -> None:
        self._engine.dispose()


def migration_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("recursive_version_locations", "true")
    return config


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(migration_config())


def _is_newest(connection: Connection, known: ScriptDirectory) -> bool:
    there = MigrationContext.configure(connection).get_current_revision()
    newest = known.get_current_head()
    # A revision that is known is migrated upwards; one that is not can only come from a newer version.
    if there is None or there in {script.revision for script in known.walk_revisions()}:
        return there == newest
    raise DatabaseNewer(
        f"the database was migrated by a newer version of Ringleader: it is at revision {there}, this version knows "
        f"revisions up to {newest}.",
        hint="Start the newer version here, too. To go back to this one, restore the backup from before the upgrade.",
    )


def _with_driver(url: URL) -> URL:
    """The URL with the driver: `postgres://` and `postgresql://` go through psycopg 3."""
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgres", "postgresql") else url


def _tune_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver's guess takes locks too late
        for pragma in (
            # Readers go on beside the writer.
            "journal_mode=WAL",
            # In WAL mode NORMAL may lose the last commits in a power cut; what was acknowledged here must stay.
            "synchronous=FULL",
            f"wal_autocheckpoint={LOG_PAGES}",
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        if said := connection.get_execution_options().get("begin", "BEGIN"):
            connection.exec_driver_sql(said)


def _tune_postgresql(engine: Engine) -> None:
    """Escape NUL in strings."""
    from psycopg.types.string import StrDumperUnknown

    # psycopg's own dumper of str leaves the type to the server; `StrDumper` would make every string a text.
    class Spelt(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            # PostgreSQL alone refuses it, and a job has to be able to report its end, whatever it has printed.
            return super().dump(obj.replace("\0", "\\x00"))

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.adapters.register_dumper(str, Spelt)
