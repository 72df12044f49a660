"""The database of the first version, with jobs in it, becomes today's: nothing is lost, everything has an owner."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from control_plane import RESULT, Stage, outcome, stage, status
from sqlalchemy import Engine, MetaData, text

from ringleader_api.reconciling import package_collection
from ringleader_api.services.packages import file_of
from ringleader_api.store.database import DatabaseNewer, Store, migration_config
from ringleader_api.store.listed import rank_of
from ringleader_api.store.tables import Base

JOB = "job_" + "1" * 26
COOKIE_SHA = "5" * 64
AT = "2026-01-01 00:00:00.000000"
WAITING = "job_" + "2" * 26
SPEC_THEN: dict[str, Any] = {
    "name": "waits", "entrypoint": "ringleader_jobs.digits:train", "working_dir": None, "params": {"lr": 0.1},
    "labels": {}, "env": {}, "batch": {"global_size": 64, "logical_shards": 3},
    "workers": {"min": 2, "max": 3, "cpus": 1.0, "gpus": 0, "memory_gb": 0.0, "placement": "pack"},
    "sync": {"intra_node": "ring", "inter_node": "ring", "algorithm": None, "reproducible": None}, "seed": 0,
    "project": "default", "max_failures": 3, "max_runtime_s": None, "policy": {"stall_timeout_s": 300.0},
    "debug": {"ledger": False},
}  # fmt: skip
"""A job file as the first version stored it."""


def move_to(engine: Engine, revision: str, *, back: bool = False) -> None:
    config = migration_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        (command.downgrade if back else command.upgrade)(config, revision)


def rows(engine: Engine, query: str, **values: Any) -> list[tuple[Any, ...]]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(text(query), values)]


def fill(engine: Engine) -> None:
    """A job with an event, a metric, a key and a session, and one that waits, as the first version stored them."""
    spec, waiting = '{"name": "old", "max_failures": 3}', json.dumps(SPEC_THEN)
    job: dict[str, Any] = {
        "id": JOB, "name": "old", "project": "vision", "owner": "operator", "labels": "{}", "spec": spec,
        "submitted": spec, "state": "succeeded", "attempt": 1, "launched": True, "generation": 1, "world_size": 0,
        "step": 9, "epoch": 0, "workers": "[]", "failures_before": 0, "failures_reported": 0, "grace_s": 30.0,
        "cancel_sent": False, "created_at": AT, "queued_at": AT, "ran_s": 1.0, "version": 1, "event_seq": 1,
        "log_seq": 0, "logs_dropped": 0,
    }  # fmt: skip
    with engine.begin() as connection:
        names, marks = ", ".join(job), ", ".join(f":{name}" for name in job)
        insert = text(f"INSERT INTO jobs ({names}) VALUES ({marks})")
        connection.execute(insert, job)
        then = {"id": WAITING, "name": "waits", "project": "default", "spec": waiting, "submitted": waiting}
        connection.execute(
            insert, job | then | {"state": "queued", "attempt": 0, "launched": False, "step": 0}
        )
        for table, values in (
            ("events", f"'{JOB}', 1, 'job.queued', '{AT}', 0, 0, '{{}}'"),
            ("metrics", f"1, '{JOB}', 'loss', 8, 0.5, '{AT}', 1"),
            ("idempotency_keys", f"'k', 'b', '{JOB}', '{AT}'"),
            ("login_sessions", f"'{COOKIE_SHA}', '2999-01-01'"),
        ):
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({values})")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ringleader.db'}"
    return str(request.getfixturevalue("postgres_server").url())


@pytest.fixture
def old(url: str) -> Iterator[Engine]:
    store = Store(url)
    move_to(store.engine(), "0001")
    fill(store.engine())
    yield store.engine()
    store.close()


def test_what_the_first_version_held_is_there_and_the_admins(old: Engine, url: str, tmp_path: Path) -> None:
    here: Stage = stage(tmp_path, database_url=url)
    job = here.job(JOB)
    assert (job["owner"], job["project"], job["progress"]["step"]) == ("admin", "vision", 9)
    assert here.events(JOB) == ["job.queued"]
    assert here.client.get(f"/api/v1/jobs/{JOB}/metrics?name=loss").json()["points"][0]["value"] == 0.5
    projects = here.client.get("/api/v1/projects").json()["items"]
    assert [(p["name"], p["role"]) for p in projects] == [("default", "admin"), ("vision", "admin")]
    assert rows(old, "SELECT owner, key, job_id FROM idempotency_keys_of_owners") == [("admin", "k", JOB)]
    sessions = rows(old, 'SELECT "user" FROM login_sessions WHERE sha256 = :sha', sha=COOKIE_SHA)
    assert sessions == [("admin",)]
    here.control.close()


def test_a_job_that_waited_under_the_first_version_is_changed_runs_and_ends(
    old: Engine, url: str, tmp_path: Path
) -> None:
    here: Stage = stage(tmp_path, database_url=url)
    here.tick()
    smaller = here.client.patch(f"/api/v1/jobs/{WAITING}", json={"workers": {"max": 2}, "priority": 1})
    assert (smaller.status_code, here.state(WAITING)) == (200, "starting")
    here.post(WAITING, status=status("running"))
    here.tick()
    assert here.cluster.told == [("resize", WAITING, 1, 2, 2)]
    here.post(WAITING, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick(2)
    assert (here.state(WAITING), here.job(WAITING)["spec"]["priority"]) == ("succeeded", 1)
    assert "priority.changed" in here.events(WAITING)
    here.control.close()


def test_jobs_of_before_there_were_shares_may_have_what_they_want_and_projects_weigh_the_same(
    old: Engine,
) -> None:
    move_to(old, "0002")
    with old.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO projects VALUES ('small', '{AT}')")
    move_to(old, "head")
    found = rows(old, "SELECT id, granted, granted_at, preempted FROM jobs ORDER BY id")
    assert found == [(job_id, None, None, False) for job_id in (JOB, WAITING)]
    due = rows(old, "SELECT name, weight, quota_workers, quota_cpus, quota_gpus FROM projects")
    assert ("small", 1.0, None, None, None) in due
    move_to(old, "0002", back=True)
    assert rows(old, "SELECT id FROM jobs ORDER BY id") == [(JOB,), (WAITING,)]


def test_the_tables_are_those_of_the_code(old: Engine) -> None:
    move_to(old, "head")
    with old.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_lists_are_sorted_by_parameters_that_were_stored_before(old: Engine, url: str) -> None:
    move_to(old, "0020")
    values = ["2", "10", "-0.5", "a", "true", "1e-300", "1e999", "1.", "x" * 200, "ü"]
    with old.begin() as connection:
        insert = text(
            "INSERT INTO job_attributes (kind, key, value, job_id) VALUES (:kind, 'k', :value, :job)"
        )
        for kind in ("param", "label"):
            connection.execute(insert, [{"kind": kind, "value": one, "job": JOB} for one in values])
    move_to(old, "head")
    found = dict(rows(old, "SELECT value, rank FROM job_attributes WHERE kind = 'param'"))
    assert found == {value: rank_of(value) for value in values}
    assert rows(old, "SELECT count(*) FROM job_attributes WHERE rank <> ''") == [(2 * len(values),)]
    numbers = ["-0.5", "1e-300", "2", "10", "1e999"]
    assert sorted(values, key=found.__getitem__)[: len(numbers)] == numbers


def test_back_to_the_first_version_and_up_again_loses_no_job(old: Engine, url: str, tmp_path: Path) -> None:
    move_to(old, "head")
    move_to(old, "0001", back=True)
    assert rows(old, "SELECT owner FROM jobs") == [("operator",)] * 2
    assert rows(old, "SELECT key FROM idempotency_keys") == [("k",)]
    move_to(old, "head")
    here = stage(tmp_path, database_url=url)
    assert here.job(JOB)["owner"] == "admin"
    here.control.close()


@pytest.mark.parametrize(
    ("before", "after"), [("0005", "0006"), ("0006", "0007"), ("0007", "0008"), ("0008", "head")]
)
def test_what_the_version_before_writes_and_reads_goes_on_after_a_migration(
    url: str, before: str, after: str
) -> None:
    store = Store(url)
    tables = []
    for revision in (before, after):
        move_to(store.engine(), revision)
        found = MetaData()
        found.reflect(store.engine())
        tables.append(found.tables)
    store.close()
    for name, old in tables[0].items():
        new = tables[1][name]
        for column in old.columns:
            assert new.columns[column.name].nullable or not column.nullable, f"{name}.{column.name}"
        for column in new.columns:
            left_out = column.nullable or column.server_default is not None
            assert column.name in old.columns or left_out, f"{name}.{column.name}"


def test_a_package_that_the_version_before_stores_meanwhile_stays_for_its_time(
    url: str, tmp_path: Path
) -> None:
    here: Stage = stage(tmp_path, database_url=url)
    digest, kept = "ab" * 32, timedelta(days=1)
    file_of(tmp_path, digest).write_bytes(b"packed")
    stored = "INSERT INTO packages (sha256, size_bytes, created_at) VALUES (:digest, 6, :at)"
    with here.control.store.write() as session:
        session.execute(text(stored), {"digest": digest, "at": here.time().replace(tzinfo=None)})
    here.time.pass_s(86_400)
    package_collection.collect(here.control.store, tmp_path, here.time(), kept)
    assert file_of(tmp_path, digest).exists()
    here.time.pass_s(1)
    package_collection.collect(here.control.store, tmp_path, here.time(), kept)
    assert not file_of(tmp_path, digest).exists()
    here.control.close()


def test_tables_of_a_newer_version_are_refused_in_words_and_left_alone(url: str) -> None:
    store = Store(url)
    store.migrate()
    with store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseNewer, match=r"at revision 9999, .* up to 00\d\d\.") as refused:
        store.migrate()
    assert "Start the newer version" in str(refused.value)
    assert rows(store.engine(), "SELECT version_num FROM alembic_version") == [("9999",)]
    store.close()
