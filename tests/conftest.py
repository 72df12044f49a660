"""What all tests share: the way to their helpers, and a plain word about browser tests that did not run."""

import gc
import io
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ringleader.bench.control_plane.postgres import MISSING, Postgres, binaries, postgres
from ringleader.files import SCRATCH
from ringleader_api.log import JsonLines

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "unit")]

from databases import Databases  # noqa: E402 - it lies there
from parts import PARTS, Stopwatch, choose  # noqa: E402
from ray_environ import FAIR  # noqa: E402
from reached import changed, reached  # noqa: E402

os.environ.update(FAIR)
# A busy machine is no counterexample.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
gc.disable()  # until all modules are loaded

DESCRIPTORS = 300
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """The browser for tests: $CHROMIUM, or one on PATH."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if os.access(named, os.X_OK) else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The browser's path; tests that take it carry the mark `browser` by themselves, and look at the page as built."""
    from ringleader_api.routes.page import STATIC

    if not (STATIC / "index.html").is_file():
        pytest.skip("the page has not been built")
    path = chromium()
    assert path is not None
    return path


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What the API logs, a JSON object a line."""
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("ringleader")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield told
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Whoever changes what new files are open to changes it for every test behind it."""
    before = os.umask(0o022)
    yield
    after = os.umask(before)
    assert after == 0o022, f"the test left the umask {after:o}"


@pytest.fixture(autouse=True)
def no_control_plane_left_open() -> Iterator[None]:
    """Garbage is collected too seldom to leave the descriptors of thousands of them to it."""
    from control_plane import closed_behind

    with closed_behind():
        yield


@pytest.fixture(autouse=True)
def few_descriptors() -> Iterator[None]:
    """The stores and sockets of members that a test kills in threads are garbage, which is collected too seldom."""
    yield
    if sum(1 for _ in Path("/proc/self/fd").iterdir()) > DESCRIPTORS:
        gc.collect()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file leaves (modules, caches) is not looked through again: else that is a fifth of the tests' time."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_scratch() -> Iterator[None]:
    """Jobs of tests keep copies of data and packages for later ones: not where other jobs of this node look for them,
    and no longer than the tests run."""
    made = TemporaryDirectory(prefix="ringleader-scratch-", ignore_cleanup_errors=True)
    with made as folder, pytest.MonkeyPatch.context() as environ:
        environ.setenv(SCRATCH, folder)
        yield


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


@pytest.fixture
def no_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long requests take, nobody may ask more often for it."""
    from ringleader_api.edge.rate import Allowance

    monkeypatch.setattr(Allowance.__init__, "__defaults__", (lambda: 0.0,))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="by default all cases of all tests: see tests/parts.py")
    parser.addoption(
        "--since", metavar="REF", help="only files that changes since REF reach: see tests/reached.py"
    )
    parser.addoption("--measure", action="store_true", help="write tests/seconds.json by what the tests take")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.measure and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Browser tests need a browser, GPU tests a GPU; chaos runs only when asked for: `make chaos`."""
    turns = {f"tests/{file}": turn for turn, file in enumerate(LONGEST)}
    items.sort(key=lambda item: turns.get(item.nodeid.partition("::")[0], len(turns)))
    others: list[pytest.Item] = []
    if "chaos" not in (config.option.markexpr or ""):
        # Left out, not skipped: to begin and report three thousand skipped tests takes nine processor seconds.
        others += [item for item in items if item.get_closest_marker("chaos")]
        items[:] = [item for item in items if not item.get_closest_marker("chaos")]
    items[:], left = choose(items, config.option.part)
    others += left
    files = reached(changed(config.option.since)) if config.option.since else None
    if files is not None:
        others += [item for item in items if item.nodeid.partition("::")[0] not in files]
        items[:] = [item for item in items if item.nodeid.partition("::")[0] in files]
    if others:
        config.hook.pytest_deselected(items=others)
    for item in items:
        if "browser_path" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        if item.get_closest_marker("browser") and chromium() is None:
            item.add_marker(pytest.mark.skip(reason="no Chromium: set CHROMIUM or put one on PATH"))
        if "postgres_server" in getattr(item, "fixturenames", ()) and binaries() is None:
            item.add_marker(pytest.mark.skip(reason=MISSING))
        if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if (
        _browser_missing(session.config, getattr(session, "items", []))  # who only hands out has none
        and os.environ.get("REQUIRE_BROWSER") == "1"
        and not exitstatus
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


SHARED = {
    "cluster": tuple(
        f"integration/test_{name}.py"
        for name in (
            "runtime_job",
            "runtime_modes",
            "runtime_supervisors",
            "runtime_leaving",
            "runtime_nodes",
            "nodes_index",
            "leasing_faults",
        )
    ),
    "stack": tuple(
        f"e2e/test_{name}.py" for name in ("bad_functions", "describe", "page", "readme", "survival", "sweep")
    ),
}
"""Test files that share what takes long to start: one process runs them all."""

LONGEST = (*SHARED["cluster"], *SHARED["stack"], "e2e/test_laboratory.py", "integration/test_autoscaling.py")
"""They come first, so that processes which take one file after the other end at about the same time."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` a process takes one file after the other, and those of `SHARED` together."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    homes = {f"tests/{file}": name for name, files in SHARED.items() for file in files}

    class Together(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return homes.get(file, file)

    return Together(config, log)


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
    if torch := sys.modules.get("torch"):
        # As in a worker, and each thread that computes would have threads of its own that spin.
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # a million objects of modules and tests stay: they are not looked through again
    gc.enable()


def _browser_missing(config: pytest.Config, items: list[pytest.Item]) -> bool:
    if config.option.collectonly or chromium() is not None:
        return False
    return any(item.get_closest_marker("browser") for item in items)
