"""The database of the first version, with jobs in it, becomes today's: nothing is lost, everything has an owner."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from control_plane import Stage, stage
from sqlalchemy import Engine, create_engine

from ringleader_api.store.database import MIGRATIONS
from ringleader_api.store.tables import Base

JOB = "job_" + "1" * 26
COOKIE_SHA = "5" * 64
AT = "2026-01-01 00:00:00.000000"


def move_to(engine: Engine, revision: str, *, back: bool = False) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        (command.downgrade if back else command.upgrade)(config, revision)


def fill(path: Path) -> None:
    """A job with an event, a metric, a key and a session, as the first version stored them."""
    first = (
        "id name project owner labels spec submitted state attempt launched generation world_size step epoch"
    )
    second = (
        "workers failures_before failures_reported grace_s cancel_sent created_at queued_at ran_s version"
    )
    columns = f"{first} {second} event_seq log_seq logs_dropped".split()
    spec = '{"name": "old", "max_failures": 3}'
    values = [JOB, "old", "vision", "operator", "{}", spec, spec, "succeeded", 1, 1, 1, 0, 9, 0, "[]"]
    values += [0, 0, 30.0, 0, AT, AT, 1.0, 1, 1, 0, 0]
    with sqlite3.connect(path) as database:
        marks = ", ".join("?" * len(columns))
        database.execute(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks})", values)
        database.execute("INSERT INTO events VALUES (?, 1, 'job.queued', ?, 0, 0, '{}')", (JOB, AT))
        database.execute("INSERT INTO metrics VALUES (1, ?, 'loss', 8, 0.5, ?, 1)", (JOB, AT))
        database.execute("INSERT INTO idempotency_keys VALUES ('k', 'b', ?, ?)", (JOB, AT))
        database.execute("INSERT INTO login_sessions VALUES (?, '2999-01-01')", (COOKIE_SHA,))


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'ringleader.db'}")
    move_to(engine, "0001")
    fill(tmp_path / "ringleader.db")
    yield engine
    engine.dispose()


def test_what_the_first_version_held_is_there_and_the_admins(old: Engine, tmp_path: Path) -> None:
    here: Stage = stage(tmp_path)
    job = here.job(JOB)
    assert (job["owner"], job["project"], job["progress"]["step"]) == ("admin", "vision", 9)
    assert here.events(JOB) == ["job.queued"]
    assert here.client.get(f"/api/v1/jobs/{JOB}/metrics?name=loss").json()["points"][0]["value"] == 0.5
    projects = here.client.get("/api/v1/projects").json()["items"]
    assert [(p["name"], p["role"]) for p in projects] == [("default", "admin"), ("vision", "admin")]
    with sqlite3.connect(tmp_path / "ringleader.db") as database:
        keys = database.execute("SELECT owner, key, job_id FROM idempotency_keys_of_owners").fetchall()
        assert keys == [("admin", "k", JOB)]
        sessions = database.execute("SELECT user FROM login_sessions WHERE sha256 = ?", (COOKIE_SHA,))
        assert sessions.fetchall() == [("admin",)]


def test_jobs_of_before_there_were_shares_may_have_what_they_want_and_projects_weigh_the_same(
    old: Engine, tmp_path: Path
) -> None:
    move_to(old, "0002")
    with sqlite3.connect(tmp_path / "ringleader.db") as database:
        database.execute("INSERT INTO projects VALUES ('small', ?)", (AT,))
    move_to(old, "head")
    with sqlite3.connect(tmp_path / "ringleader.db") as database:
        jobs = database.execute("SELECT id, granted, granted_at, preempted FROM jobs").fetchall()
        due = database.execute("SELECT name, weight, quota_workers, quota_cpus, quota_gpus FROM projects")
        assert jobs == [(JOB, None, None, 0)]
        assert ("small", 1.0, None, None, None) in due.fetchall()
    move_to(old, "0002", back=True)
    with sqlite3.connect(tmp_path / "ringleader.db") as database:
        assert database.execute("SELECT id FROM jobs").fetchall() == [(JOB,)]


def test_the_tables_are_those_of_the_code(old: Engine) -> None:
    move_to(old, "head")
    with old.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_back_to_the_first_version_and_up_again_loses_no_job(old: Engine, tmp_path: Path) -> None:
    move_to(old, "head")
    move_to(old, "0001", back=True)
    with sqlite3.connect(tmp_path / "ringleader.db") as database:
        assert database.execute("SELECT owner FROM jobs").fetchall() == [("operator",)]
        assert database.execute("SELECT key FROM idempotency_keys").fetchall() == [("k",)]
    move_to(old, "head")
    assert stage(tmp_path).job(JOB)["owner"] == "admin"
