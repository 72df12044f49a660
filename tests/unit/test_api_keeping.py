"""What is kept and for how long: uploads that broke off, ended jobs, nothing of deleted ones."""

import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import anyio
import pytest
from control_plane import RESULT, Stage, event, line, metric, outcome, raising, stage, status
from starlette.requests import ClientDisconnect
from test_api_jobs import zipped

from ringleader.wire import package
from ringleader_api.services.packages import _alone
from ringleader_api.store.tables import Base


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_an_upload_that_broke_off_goes_on_where_it_was(here: Stage) -> None:
    data = zipped({"a": bytes(range(256)) * 64})
    address = f"/api/v1/packages/{package.digest(data)}"

    def begins(at: int) -> dict[str, str]:
        return {"Upload-Offset": str(at)}

    _break_off(here, package.digest(data), data[:100])
    assert here.client.head(address).headers["upload-offset"] == "100"
    early = here.client.put(address, content=data, headers=begins(0))
    assert (early.status_code, early.json()["code"], early.json()["errors"][0]["value"]) == (
        409,
        "bad_upload",
        100,
    )
    stranger = here.user("ada", default="submitter")
    assert stranger.head(address).headers["upload-offset"] == "0", "everybody's uploads are their own"
    assert here.client.put(address, content=data[100:], headers=begins(100)).status_code == 201
    assert here.client.head(address).status_code == 200
    assert [file.suffix for file in (here.home / "packages").iterdir()] == [".zip"]


def test_an_upload_whose_parts_do_not_make_the_whole_is_begun_anew(tmp_path: Path) -> None:
    here = stage(tmp_path, max_package_bytes=4096)
    data = zipped({"a": b"b" * 300})
    name = package.digest(data)
    _break_off(here, name, b"wrong")
    wrong = here.client.put(f"/api/v1/packages/{name}", content=data[5:], headers={"Upload-Offset": "5"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "wrong_hash")
    assert here.client.head(f"/api/v1/packages/{name}").headers["upload-offset"] == "0"
    _break_off(here, name, bytes(4000))
    long = here.client.put(f"/api/v1/packages/{name}", content=bytes(97), headers={"Upload-Offset": "4000"})
    assert (long.status_code, long.json()["code"]) == (413, "too_large")
    _break_off(here, name, b"stale")
    assert here.client.put(f"/api/v1/packages/{name}", content=data).status_code == 201, "from the beginning"


def test_a_long_broken_off_upload_is_swept_while_the_process_runs_but_not_one_that_goes_on(
    here: Stage,
) -> None:
    old, young, held = (package.digest(zipped({"a": bytes([n])})) for n in range(3))
    for name in (old, young, held):
        _break_off(here, name, b"part")
    paths = {
        name: here.control.packages._allotted.partial(name.removeprefix("sha256:"), "admin")
        for name in (old, held)
    }
    for path in paths.values():
        os.utime(path, (0, 0))
    with _alone(paths[held]):
        here.tick()
    assert [here.control.packages.begun(name, "admin") for name in (old, young, held)] == [0, 4, 4]
    here.time.pass_s(61)
    here.tick()
    assert [here.control.packages.begun(name, "admin") for name in (old, young, held)] == [0, 4, 0]


def test_a_file_that_was_stored_between_opening_and_locking_is_not_taken_for_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, stored = tmp_path / ".upload-x", tmp_path / "x.zip"
    partial.write_bytes(b"whole")
    lock = fcntl.flock

    def late(file: BinaryIO, how: int) -> None:
        if partial.exists() and not stored.exists():
            partial.replace(stored)  # another replica was faster
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with _alone(partial) as file:
        file.truncate(0)
        assert (stored.read_bytes(), partial.read_bytes()) == (b"whole", b"")


def _break_off(here: Stage, name: str, part: bytes) -> None:
    """The first part of an upload of the admin's, then the connection is gone."""

    async def chunks() -> AsyncIterator[bytes]:
        yield part
        raise ClientDisconnect

    with pytest.raises(ClientDisconnect):
        anyio.run(here.control.packages.take, name, "admin", chunks(), 0)


def test_a_deleted_job_leaves_no_row_and_no_file_but_what_the_audit_log_tells(here: Stage) -> None:
    job_id = here.running()
    token = here.cluster.alive[job_id, 1].ingest_token
    for folder in ("jobs", "checkpoints"):
        (here.home / folder / job_id / "artifacts").mkdir(parents=True)
        (here.home / folder / job_id / "artifacts" / "weights").write_bytes(b"w")
    for folder in ("spool", "scratch"):
        (here.home / folder / f"{job_id}-a1").mkdir(parents=True)
        (here.home / folder / f"{job_id}-a1" / "records").write_bytes(b"r")
    ended = [
        line(1, "hello"),
        metric(1, 1, loss=0.5),
        event(1, "recovered"),
        outcome(1, "succeeded", result=RESULT),
    ]
    here.post(job_id, records=ended)
    here.tick(2)
    other = here.running(name="other")
    here.client.delete(f"/api/v1/jobs/{job_id}")
    here.tick()
    assert _rows_of(here, job_id) == {"audit"}
    assert here.cluster.forgotten == [job_id], "nor a word on the cluster"
    assert "jobs" in _rows_of(here, other), "a job that was not deleted stays"
    assert [path for path in here.home.rglob("*") if job_id in str(path)] == []
    here.post(job_id, token=token, expect=401)


def test_a_deleted_job_goes_once_nothing_of_it_lives_and_the_cluster_was_told(here: Stage) -> None:
    haunted, stuck = here.running(), here.submit(name="stuck", workers={"min": 1, "max": 1})
    earlier = here.cluster.alive[haunted, 1]
    here.post(haunted, records=[outcome(1, "failed", "no_step")])
    here.tick(2)
    here.post(stuck, status=status("running"), records=[outcome(1, "failed", "no_step")])
    here.tick(2)
    for job_id in (haunted, stuck):
        assert here.client.delete(f"/api/v1/jobs/{job_id}").status_code == 204
    here.cluster.alive[haunted, 1] = earlier
    here.cluster.down = True
    here.tick()
    here.cluster.down = False
    here.cluster.cut = raising("before forget", OSError("not now"))
    here.tick()
    assert (here.cluster.alive, here.cluster.forgotten) == ({}, [])
    assert [("jobs" in _rows_of(here, job_id)) for job_id in (haunted, stuck)] == [True, True]
    here.cluster.cut = lambda where: None
    here.tick()
    assert sorted(here.cluster.forgotten) == sorted([haunted, stuck])
    assert [_rows_of(here, job_id) for job_id in (haunted, stuck)] == [{"audit"}, {"audit"}]


def _rows_of(here: Stage, job_id: str) -> set[str]:
    """The tables in which some row speaks of the job."""
    with here.control.store.read() as session:
        tables = Base.metadata.tables.values()
        return {
            t.name for t in tables if any(job_id in str(tuple(row)) for row in session.execute(t.select()))
        }


def test_ended_jobs_stay_as_long_as_they_are_kept(tmp_path: Path) -> None:
    here = stage(tmp_path, jobs_kept_days=30)
    old, young = here.submit(), here.submit()
    here.client.post(f"/api/v1/jobs/{old}/cancel")
    here.time.pass_s(29 * 86_400)
    here.client.post(f"/api/v1/jobs/{young}/cancel")
    waiting = here.submit()
    here.tick(2)
    assert len(here.client.get("/api/v1/jobs").json()["items"]) == 3
    here.time.pass_s(86_401)
    here.tick(2)
    assert [job["id"] for job in here.client.get("/api/v1/jobs").json()["items"]] == [waiting, young]
    assert _rows_of(here, old) <= {"audit"}
