"""PostgreSQL databases for control planes of tests: migrated once, emptied after a test, used again by the next."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from ringleader.bench.control_plane.postgres import Postgres
from ringleader_api.store import Store
from ringleader_api.store.tables import Base

KEPT = ("users", "roles", "projects")
"""Tables that the migrations put rows into."""
FIRST_ROWS = (
    "DELETE FROM roles WHERE \"user\" <> 'admin'",
    "DELETE FROM users WHERE name <> 'admin'",
    "DELETE FROM projects WHERE name <> 'default'",
    "UPDATE users SET disabled_at = NULL",
    "UPDATE projects SET weight = 1, quota_workers = NULL, quota_cpus = NULL, quota_gpus = NULL",
)


class Databases:
    """Hands out addresses of databases that hold what a new one holds."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._free: list[str] = []

    @contextmanager
    def lent(self) -> Iterator[dict[Path, str]]:
        """Fills with an address for each home that is asked for, until the end of the block."""
        lent = _ByHome(self)
        yield lent
        for url in lent.values():
            store = Store(url)
            with store.write() as session:
                session.execute(text("SET LOCAL lock_timeout = '10s'"))
                emptied = [name for name in Base.metadata.tables if name not in KEPT]
                session.execute(text(f"TRUNCATE {', '.join(emptied)} RESTART IDENTITY"))
                for statement in FIRST_ROWS:
                    session.execute(text(statement))
            store.close()
            self._free.append(url)

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        url = self._server.url()
        store = Store(url)
        store.migrate()
        store.close()
        return url


class _ByHome(dict[Path, str]):
    def __init__(self, databases: Databases) -> None:
        super().__init__()
        self._databases = databases

    def __missing__(self, home: Path) -> str:
        self[home] = self._databases.take()
        return self[home]
