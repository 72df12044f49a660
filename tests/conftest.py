"""What all tests share: the way to their helpers, and a plain word about browser tests that did not run."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.bench.postgres import MISSING, Postgres, binaries, postgres

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "unit")]

from databases import Databases  # noqa: E402 - it lies there

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """The browser for tests: $CHROMIUM, or one on PATH."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if os.access(named, os.X_OK) else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The browser's path; tests that take it carry the mark `browser` by themselves."""
    path = chromium()
    assert path is not None
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in a folder of its own: sessions leave ledgers and traces in the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server of one's own."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def databases(postgres_server: Postgres) -> Databases:
    return Databases(postgres_server)


@pytest.fixture
def on_postgres(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Control planes of this test keep what they know on PostgreSQL: one database for each home."""
    import control_plane

    with databases.lent() as lent:
        monkeypatch.setattr(control_plane.Database, "of", lent.__getitem__)
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Browser tests need a browser, GPU tests a GPU; chaos runs only when asked for."""
    for item in items:
        if "browser_path" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        if item.get_closest_marker("browser") and chromium() is None:
            item.add_marker(pytest.mark.skip(reason="no Chromium: set CHROMIUM or put one on PATH"))
        if "postgres_server" in getattr(item, "fixturenames", ()) and binaries() is None:
            item.add_marker(pytest.mark.skip(reason=MISSING))
        if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.get_closest_marker("chaos") and "chaos" not in (config.option.markexpr or ""):
            item.add_marker(pytest.mark.skip(reason="a long seeded run: make chaos"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if (
        _browser_missing(session.config, getattr(session, "items", []))  # who only hands out has none
        and os.environ.get("REQUIRE_BROWSER") == "1"
        and not exitstatus
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The very last words of a run."""
    if _browser_missing(config, config.stash.get(_collected, [])):
        why = " (REQUIRE_BROWSER=1: that is a failure)" if os.environ.get("REQUIRE_BROWSER") == "1" else ""
        print(f"browser tests NOT run{why}")


_collected = pytest.StashKey[list[pytest.Item]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if "ray" in sys.modules:
        # Ray makes its settings when it is imported: tests that connect to a cluster do so first, by its address.
        raise pytest.UsageError("a test module imports ray when it is collected; import it inside the test")
    session.config.stash[_collected] = list(session.items)


def _browser_missing(config: pytest.Config, items: list[pytest.Item]) -> bool:
    if config.option.collectonly or chromium() is not None:
        return False
    return any(item.get_closest_marker("browser") for item in items)
