"""SQLite's write-ahead log is copied into the database beside the commits, none of which waits for it."""

from pathlib import Path

from control_plane import DATABASE, closed_behind, stage
from sqlalchemy import text
from waiting import wait_for

from ringleader_api.store import Store
from ringleader_api.store.database import LOG_PAGES
from ringleader_api.store.tables import Fact

PAGE_BYTES, BY_DEFAULT = 4096, 1000


def written(store: Store, name: str, pages: int) -> None:
    """One commit of so many pages."""
    with store.write() as session:
        session.add(Fact(name=name, value="x" * PAGE_BYTES * pages))


def test_commits_leave_the_log_alone_and_its_copy_makes_room_in_it(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    store.copy_log()
    file, wal = tmp_path / DATABASE, tmp_path / f"{DATABASE}-wal"
    before = file.stat().st_size
    for number in range(12):
        written(store, str(number), BY_DEFAULT // 10)
    assert file.stat().st_size == before, "a commit has copied the log"
    store.copy_log()
    assert file.stat().st_size >= before + 12 * BY_DEFAULT // 10 * PAGE_BYTES
    full = wal.stat().st_size
    written(store, "next", BY_DEFAULT // 10)
    assert wal.stat().st_size == full, "the log begins again at its front"
    store.close()


def test_a_log_that_nobody_copies_is_copied_by_a_commit(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    with store.read() as session:
        assert session.scalar(text("PRAGMA wal_autocheckpoint")) == LOG_PAGES
    before = (tmp_path / DATABASE).stat().st_size
    written(store, "large", LOG_PAGES + 1)
    assert (tmp_path / DATABASE).stat().st_size >= before + LOG_PAGES * PAGE_BYTES
    store.close()


def test_a_control_plane_copies_the_log_by_itself(tmp_path: Path) -> None:
    here = stage(tmp_path)
    file = tmp_path / DATABASE
    with here.client:
        before = file.stat().st_size
        written(here.control.store, "some", 100)
        wait_for("the copy of the log", lambda: file.stat().st_size >= before + 100 * PAGE_BYTES)


def test_stages_of_tests_leave_no_descriptor_open(tmp_path: Path) -> None:
    with closed_behind():
        for number in range(3):
            stage(tmp_path / str(number)).tick()
    descriptors = Path("/proc/self/fd")
    opened = [str(file.readlink()) for file in descriptors.iterdir() if file.is_symlink()]
    assert not [path for path in opened if path.startswith(str(tmp_path))]
