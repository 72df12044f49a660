"""A database or a disk that refuses is told in a sentence, and never taken for a new one."""

import logging
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from control_plane import DATABASE, SPEC, Stage, stage
from sqlalchemy.event import listens_for
from test_api_jobs import zipped
from waiting import wait_for

from ringleader.wire import package
from ringleader_api.store import Store
from ringleader_api.store.whole import DatabaseDamaged, DatabaseLost, DatabaseUnavailable

HANG_S = 60.0
LARGE = {**SPEC, "params": {"notes": "x" * 500_000}}


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def with_pragma(here: Stage, said: str) -> None:
    @listens_for(here.control.store.engine(), "checkout")
    def _said(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA {said}")


def test_a_full_database_is_said_to_who_writes_and_keeps_nobody_from_reading(here: Stage) -> None:
    job_id = here.submit()
    with_pragma(here, "max_page_count=1")  # no page more than it has
    refused = here.client.post("/api/v1/jobs", json=LARGE)
    assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
    assert "database or disk is full" in refused.json()["detail"]
    assert "Free space" in refused.json()["hint"]
    assert here.job(job_id)["state"] == "queued"
    with_pragma(here, "max_page_count=1000000")
    assert here.client.post("/api/v1/jobs", json=LARGE).status_code == 201


def test_a_locked_database_is_said_too_and_nothing_of_the_request_is_stored(here: Stage) -> None:
    with_pragma(here, "busy_timeout=1")
    with closing(sqlite3.connect(here.home / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for send in (
            lambda: here.client.post("/api/v1/jobs", json=SPEC),
            lambda: here.client.put("/api/v1/secrets/default/hub", json={"value": "5ecretV4lue"}),
            lambda: here.client.post("/api/v1/login", json={"token": (here.home / "token").read_text()}),
        ):
            refused = send()
            assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
            assert "database is locked" in refused.json()["detail"]
        assert here.client.get("/api/v1/jobs").json()["items"] == []
    assert here.submit()


def test_a_disk_without_room_for_a_package_is_said(here: Stage) -> None:
    data = zipped({"train.py": b"", "rows.bin": os.urandom(8 << 20)})
    address = f"/api/v1/packages/{package.digest(data)}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, before[1]))  # the database has room
    try:
        refused = here.client.put(address, content=data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (refused.status_code, refused.json()["code"]) == (503, "disk_full")
    assert here.client.put(address, content=data).status_code == 201


def test_a_round_that_the_database_refuses_is_a_line_in_the_log_without_a_traceback(
    here: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = here.submit()
    with_pragma(here, "busy_timeout=1")
    loop = Thread(target=here.control.reconciler.run, args=(0.01,))

    def failed() -> list[logging.LogRecord]:
        return [told for told in caplog.records if told.getMessage() == "reconciler.round_failed"]

    with closing(sqlite3.connect(here.home / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        loop.start()
        wait_for("a round that fails", failed)
    wait_for("a round that does not", lambda: here.cluster.alive.get((job_id, 1)))
    here.control.reconciler.stop()
    loop.join(HANG_S)
    assert {told.exc_info for told in failed()} == {None}


def cut(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)


def zero_a_page(database: Path) -> None:
    with database.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(bytes(4096))


def overwrite(database: Path) -> None:
    with database.open("r+b") as file:
        file.write(b"not a database at all" * 10)


def filled(home: Path) -> Path:
    """The database of a home in which jobs have been, closed."""
    here = stage(home)
    here.submit()
    (home / "jobs" / "job_1").mkdir(parents=True)
    here.control.close()
    with closing(sqlite3.connect(home / DATABASE)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return home / DATABASE


@pytest.mark.parametrize("harm", [cut, zero_a_page, overwrite])
def test_a_damaged_database_is_refused_untouched_with_what_to_do(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    database = filled(tmp_path)
    harm(database)
    left = database.read_bytes()
    with pytest.raises(DatabaseDamaged, match="restore a backup") as refused:
        Store.at(tmp_path)
    assert str(database) in refused.value.message
    assert database.read_bytes() == left


def test_the_control_plane_says_so_in_a_line_and_no_traceback(tmp_path: Path) -> None:
    cut(filled(tmp_path))
    env = {**os.environ, "RINGLEADER_HOME": str(tmp_path), "RINGLEADER_RAY_ADDRESS": "127.0.0.1:1"}
    ended = subprocess.run(
        [sys.executable, "-m", "ringleader_api"],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {tmp_path / DATABASE} is damaged: ")
    assert "Traceback" not in ended.stderr


def empty(database: Path) -> None:
    database.write_bytes(b"")


def drop_tables(database: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as anew:
        anew.execute("PRAGMA journal_mode=WAL")


@pytest.mark.parametrize("loss", [empty, drop_tables, Path.unlink])
def test_an_empty_database_beside_folders_of_jobs_is_never_begun_anew(
    loss: Callable[[Path], None], tmp_path: Path
) -> None:
    loss(filled(tmp_path))
    for _ in range(2):
        with pytest.raises(DatabaseLost, match=f"{tmp_path / 'jobs'} holds files of jobs"):
            Store.at(tmp_path)
    (tmp_path / "jobs").rename(tmp_path / "jobs.before")
    (tmp_path / "jobs").mkdir()
    Store.at(tmp_path).close()


def test_a_database_that_somebody_holds_at_the_start_is_waited_for_and_then_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            Store.at(tmp_path)
    Store.at(tmp_path).close()
