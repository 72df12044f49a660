"""Packages that no job refers to go, also from under a submission that is about to refer to one; never a job's own."""

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from control_plane import SPEC, Stage, stage
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from test_api_jobs import zipped

from ringleader.client import Client
from ringleader.wire import package
from ringleader_api.reconciling import package_collection
from ringleader_api.services import packages
from ringleader_api.services.package_quota import AGAIN_BYTES, PackagesUsedUp
from ringleader_api.store import Store
from ringleader_api.store.tables import Job, Package

HANG_S = 30
DAY_S = 86_400.0
DATA = zipped({"train.py": b"def train(session): ..."})
NAME = f"sha256:{package.digest(DATA).removeprefix('sha256:')}"
ADDRESS = f"/api/v1/packages/{NAME}"
KEPT = timedelta(days=1)


@pytest.fixture(params=["sqlite", "postgresql"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param == "postgresql":
        request.getfixturevalue("on_postgres")
    return stage(tmp_path)


def upload(here: Stage) -> None:
    assert here.client.put(ADDRESS, content=DATA).status_code == 201


def left(here: Stage) -> tuple[int, int]:
    """Rows and files of packages."""
    with here.control.store.read() as session:
        rows = session.scalar(select(func.count()).select_from(Package)) or 0
    return rows, len(list((here.home / "packages").iterdir()))


def later(here: Stage, days: float) -> None:
    here.time.pass_s(days * DAY_S)
    here.tick()


def submit(here: Stage) -> Response:
    answer: Response = here.client.post("/api/v1/jobs", json={**SPEC, "working_dir": NAME})
    return answer


def test_a_package_stays_while_a_job_refers_to_it_and_goes_when_the_last_one_is_deleted(here: Stage) -> None:
    upload(here)
    jobs = [submit(here).json()["id"] for _ in range(2)]
    for job_id in jobs:
        here.client.post(f"/api/v1/jobs/{job_id}/cancel")
    later(here, 30)
    assert left(here) == (1, 1)
    for n, job_id in enumerate(jobs, start=1):
        assert here.client.delete(f"/api/v1/jobs/{job_id}").status_code == 204
        here.tick()
        later(here, 0.01)
        assert left(here) == ((1, 1) if n == 1 else (0, 0))


def test_who_asks_for_a_package_has_half_of_its_time_to_submit(here: Stage) -> None:
    upload(here)
    later(here, 0.9)
    assert here.client.head(ADDRESS).status_code == 200
    later(here, 0.5)
    assert (here.client.head(ADDRESS).status_code, left(here)) == (200, (1, 1))
    later(here, 1.01)
    assert (here.client.head(ADDRESS).status_code, left(here)) == (404, (0, 0))
    assert submit(here).json()["errors"][0]["pointer"] == "/working_dir"


class Cut:
    """A store that does something before each of its transactions, told how many there were."""

    def __init__(self, store: Store, deed: Callable[[int], object]) -> None:
        self.read = store.read
        self.version = 0
        self._store = store
        self._deed = deed

    def write(self) -> AbstractContextManager[Session]:
        self._deed(self.version)
        self.version += 1
        return self._store.write()


def test_a_submission_that_is_being_stored_keeps_its_package(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(here)
    here.time.pass_s(2 * DAY_S)
    other = stage(here.home)  # another replica
    chosen = threading.Event()  # by the first transaction it was decided what seems unused
    store = Cut(other.control.store, lambda _: chosen.set())
    collects = threading.Thread(
        target=lambda: package_collection.collect(store, here.home, here.time(), KEPT)
    )
    held: list[bool] = []
    there = packages.there

    def overtaken(session: Session, name: str, *, hold: bool = False) -> bool:
        found = there(session, name, hold=hold)
        if hold:
            collects.start()
            assert chosen.wait(HANG_S)
            held.append(found)
        return found

    monkeypatch.setattr(packages, "there", overtaken)
    answer = submit(here)
    collects.join(HANG_S)
    assert (answer.status_code, held, collects.is_alive()) == (201, [True], False)
    assert left(here) == (1, 1)
    here.tick()
    assert here.cluster.alive[answer.json()["id"], 1].package == DATA


def test_a_submission_whose_package_went_after_it_was_checked_is_refused_and_stores_nothing(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(here)
    here.time.pass_s(2 * DAY_S)
    there = packages.there

    def then_gone(session: Session, name: str, *, hold: bool = False) -> bool:
        found = there(session, name, hold=hold)
        if not hold:
            package_collection.collect(here.control.store, here.home, here.time(), KEPT)
        return found

    monkeypatch.setattr(packages, "there", then_gone)
    answer = submit(here)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/working_dir")
    with here.control.store.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0
    assert left(here) == (0, 0)


def test_an_upload_between_giving_up_and_removing_keeps_row_and_file(here: Stage) -> None:
    upload(here)
    here.time.pass_s(2 * DAY_S)
    store = Cut(here.control.store, lambda number: upload(here) if number == 1 else None)
    package_collection.collect(store, here.home, here.time(), KEPT)
    assert (here.client.head(ADDRESS).status_code, left(here)) == (200, (1, 1))


def _dies(what: str) -> Callable[..., Any]:
    def died(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(what)

    return died


def test_who_dies_between_giving_up_and_removing_leaves_it_to_the_next_and_an_upload_brings_it_back(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(here)
    here.time.pass_s(2 * DAY_S)
    with monkeypatch.context() as dying:
        dying.setattr(package_collection, "_remove", _dies("before the file"))
        with pytest.raises(KeyboardInterrupt):
            here.tick()
    assert (here.client.head(ADDRESS).status_code, submit(here).status_code) == (404, 422)
    upload(here)
    later(here, 0.01)
    assert (submit(here).status_code, left(here)) == (201, (1, 1))
    here.client.post(f"/api/v1/jobs/{here.client.get('/api/v1/jobs').json()['items'][0]['id']}/cancel")
    assert here.client.head(ADDRESS).status_code == 200


def test_a_file_without_a_row_is_swept_once_its_upload_is_long_over(here: Stage) -> None:
    upload(here)
    folder = here.home / "packages"
    for n in "12":
        (folder / f"{n * 64}.zip").write_bytes(b"x")
    os.utime(folder / f"{'1' * 64}.zip", (0, 0))
    os.utime(folder / f"{NAME.removeprefix('sha256:')}.zip", (0, 0))
    here.tick()
    assert sorted(p.name[0] for p in folder.iterdir()) == sorted([NAME.removeprefix("sha256:")[0], "2"])


def test_a_file_that_was_all_here_for_long_is_no_leftover_once_it_is_registered(here: Stage) -> None:
    digest = NAME.removeprefix("sha256:")
    partial = here.control.packages._allotted.partial(digest, "admin")
    partial.write_bytes(DATA)
    os.utime(partial, (0, 0))
    rest = here.client.put(ADDRESS, content=b"", headers={"Upload-Offset": str(len(DATA))})
    assert rest.status_code == 201
    assert packages.file_of(here.home, digest).stat().st_mtime > 0


def test_two_that_upload_the_same_at_once_both_have_it(here: Stage) -> None:
    users = [here.user(name, default="submitter") for name in ("ada", "ben")]
    gate = threading.Barrier(2)
    found: list[int] = []

    def put(client: Any) -> None:
        gate.wait(HANG_S)
        found.append(client.put(ADDRESS, content=DATA).status_code)

    threads = [threading.Thread(target=put, args=(client,)) for client in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert (sorted(found), left(here)) == ([200, 201], (1, 1))


def other(number: int, size_bytes: int = 0) -> tuple[str, bytes]:
    """The address of another package, and the package."""
    data = zipped({"train.py": b"# %d %s" % (number, os.urandom(size_bytes))})
    return f"/api/v1/packages/{package.digest(data)}", data


def test_what_one_sender_leaves_is_bounded_in_packages_and_others_are_not_held_up(tmp_path: Path) -> None:
    here = stage(tmp_path, packages_per_user=3)
    ada, ben = (here.user(name, default="submitter") for name in ("ada", "ben"))
    answers = [ada.put(address, content=data) for address, data in map(other, range(5))]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 409, 409]
    told = answers[-1].json()
    assert (told["code"], "Delete jobs" in told["hint"]) == ("packages_used_up", True)
    assert left(here) == (3, 3), "of what was refused nothing stays"
    address, data = other(9)
    assert ben.put(address, content=data).status_code == 201
    later(here, 2)
    assert ada.put(address, content=data).status_code == 201, "what nobody needs has gone"


def test_who_has_used_up_the_quota_leaves_no_file_by_breaking_off(tmp_path: Path) -> None:
    here = stage(tmp_path, packages_per_user=1)
    ada = here.user("ada", default="submitter")
    address, data = other(0)
    assert ada.put(address, content=data).status_code == 201

    async def nothing() -> AsyncIterator[bytes]:
        raise ConnectionResetError
        yield b""

    async def upload(digest: str) -> None:
        with pytest.raises(PackagesUsedUp):
            await here.control.packages.take(digest, "ada", nothing())

    before = left(here)
    for number in range(3):
        anyio.run(upload, str(number) * 64)
    assert left(here) == before


def test_what_one_sender_leaves_is_bounded_in_bytes_with_what_broke_off(tmp_path: Path) -> None:
    here = stage(tmp_path, package_bytes_per_user=50_000)
    digest = "0" * 64
    here.control.packages._allotted.partial(digest, "admin").write_bytes(b"x" * 45_000)
    address, data = other(1, 8000)
    refused = here.client.put(address, content=data)
    assert (refused.status_code, refused.json()["code"]) == (409, "packages_used_up")
    here.control.packages._allotted.partial(digest, "admin").unlink()
    assert here.client.put(address, content=data).status_code == 201
    broke_off = here.control.packages._allotted.partial("1" * 64, "ada")
    broke_off.write_bytes(b"x" * 45_000)
    address, data = other(2, 8000)
    assert here.client.put(address, content=data).status_code == 201, "another's is not counted"


def test_an_upload_that_goes_beyond_what_is_left_is_given_up_on_its_way(tmp_path: Path) -> None:
    here = stage(tmp_path, package_bytes_per_user=AGAIN_BYTES)
    asked: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            asked.append(1)
            yield b"x" * (1 << 20)

    async def upload() -> None:
        with pytest.raises(PackagesUsedUp):
            await here.control.packages.take("0" * 64, "ada", endless())

    anyio.run(upload)
    assert len(asked) <= 2 * (AGAIN_BYTES >> 20) + 1
    assert left(here) == (0, 0)


def test_the_end_of_an_upload_takes_nothing_of_the_next_one_of_its_sender(here: Stage) -> None:
    """The next one begins at the moment at which the file has got its name."""
    packages = here.control.packages
    keep = packages._keep

    def kept(partial: Path, *told: Any) -> bool:
        new = keep(partial, *told)
        partial.write_bytes(DATA[:20])
        return new

    packages._keep = kept  # type: ignore[method-assign]
    assert here.client.put(ADDRESS, content=DATA).status_code == 201
    packages._keep = keep  # type: ignore[method-assign]
    assert packages.begun(NAME, "admin") == 20
    rest = here.client.put(ADDRESS, content=DATA[20:], headers={"Upload-Offset": "20"})
    assert (rest.status_code, left(here)) == (200, (1, 1))


@pytest.mark.parametrize("complete", [True, False])
def test_the_rest_of_an_upload_that_is_not_there_leaves_no_file(here: Stage, complete: bool) -> None:
    """Another request of its sender may have completed the upload since the offset was asked for."""
    if complete:
        upload(here)
    rest = here.client.put(ADDRESS, content=DATA[20:], headers={"Upload-Offset": "20"})
    assert (rest.status_code, rest.json()["code"]) == (409, "bad_upload")
    assert left(here) == ((1, 1) if complete else (0, 0))


def test_many_that_submit_one_folder_at_the_same_time_all_get_their_job(
    tmp_path: Path,
) -> None:
    """Each is a process of its own to the server: they know nothing of one another."""
    here = stage(tmp_path / "home")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def train(session): ...\n")
    gate = threading.Barrier(8)
    found: list[str] = []

    def submit() -> None:
        transport = Through(here.client)
        with Client(
            "http://127.0.0.1:8123", (tmp_path / "home" / "token").read_text(), transport=transport
        ) as sdk:
            gate.wait(HANG_S)
            found.append(sdk.submit({**SPEC, "entrypoint": "train:train"}, working_dir=tmp_path / "code").id)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len(set(found)) == 8
    assert left(here) == (1, 1)


class Through(httpx.BaseTransport):
    """The SDK's requests, answered by the application."""

    def __init__(self, app: TestClient) -> None:
        self._app = app

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._app.request(
            request.method, str(request.url), content=request.read(), headers=dict(request.headers)
        )
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
