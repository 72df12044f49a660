"""Several control planes over one PostgreSQL: the same rules as over SQLite, and together they behave as one."""

import itertools
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from control_plane import RESULT, SPEC, FakeCluster, Stage, line, outcome, stage, status
from sqlalchemy import update
from sqlalchemy.orm import Session
from test_api_ingest import *  # noqa: F403 - its tests run here once more, over PostgreSQL
from test_api_kills import MortalStore, reconciler_over
from test_api_lost_attempts import *  # noqa: F403
from test_api_reconciler import *  # noqa: F403

from ringleader_api.problems import Conflict
from ringleader_api.reconciling import RoleLeasedBackend
from ringleader_api.rights import WHOLE, Caller
from ringleader_api.services.jobs.claims import quota_left
from ringleader_api.services.jobs.listing import Filter
from ringleader_api.services.users import tokens
from ringleader_api.store import Fenced, RoleLeaseLost, Store
from ringleader_api.store.leases import FileLease, RowLease
from ringleader_api.store.tables import Job, RoleLeaseRow

HANG_S = 30


@pytest.fixture(autouse=True)
def _over_postgres(on_postgres: None) -> None:
    """Every control plane of this file."""


class Seconds:
    """A clock for leases, moved by hand."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s

    def of_database(self, session: Session) -> datetime:
        return datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=self.s)


def leases(store: Store, clock: Seconds) -> tuple[RowLease, RowLease]:
    return tuple(RowLease(store, "cook", 9, clock.of_database, clock) for _ in range(2))  # type: ignore[return-value]


def test_a_role_is_held_by_one_until_its_time_is_over(tmp_path: Path) -> None:
    store, clock = stage(tmp_path).control.store, Seconds()
    one, other = leases(store, clock)
    assert [one.hold(), other.hold()] == [True, False]
    clock.s = 8  # asks again on the way
    assert [one.hold(), other.hold()] == [True, False]
    clock.s = 16
    assert [other.hold(), one.hold()] == [False, True]
    clock.s = 26
    assert [other.hold(), one.hold(), one.token, other.token] == [True, False, 0, 2]


def test_a_round_of_long_questions_keeps_the_role(tmp_path: Path) -> None:
    here, clock = stage(tmp_path), Seconds()
    one, other = leases(here.control.store, clock)
    assert one.hold()
    cluster = RoleLeasedBackend(here.cluster, one)
    for _ in range(4):
        clock.s += 5
        assert cluster.answers([("job", 1)])
        assert not other.hold()


def test_a_role_that_was_let_go_is_free_at_once(tmp_path: Path) -> None:
    one, other = leases(stage(tmp_path).control.store, Seconds())
    assert [one.hold(), other.hold()] == [True, False]
    one.let_go()
    assert [other.hold(), one.hold()] == [True, False]


def test_who_was_frozen_past_its_time_stores_and_does_nothing(tmp_path: Path) -> None:
    here, clock = stage(tmp_path), Seconds()
    job_id = here.submit()
    one, other = leases(here.control.store, clock)
    assert one.hold()
    clock.s = 10
    with pytest.raises(RoleLeaseLost):
        one.require()
    assert other.hold()
    with pytest.raises(RoleLeaseLost), Fenced(here.control.store, one).write() as session:
        session.get_one(Job, job_id).name = "overwritten"
    assert here.job(job_id)["name"] == SPEC["name"]
    with Fenced(here.control.store, other).write() as session:
        session.get_one(Job, job_id).name = "renamed"
    assert here.job(job_id)["name"] == "renamed"


def test_a_file_that_nobody_has_locked_gives_no_role_without_being_asked_for(tmp_path: Path) -> None:
    lease = FileLease(tmp_path / "lock")
    with pytest.raises(RoleLeaseLost):
        lease.require()
    assert lease.hold()
    lease.require()
    lease.let_go()
    with pytest.raises(RoleLeaseLost), Fenced(stage(tmp_path).control.store, lease).write():
        pass
    assert lease.hold(), "the questions have left it free"


def test_a_second_process_over_one_home_stands_by(tmp_path: Path) -> None:
    lease = FileLease(tmp_path / "lock")
    assert lease.hold()
    asks = "from pathlib import Path; from ringleader_api.store.leases import FileLease; import sys; "
    asks += "print(FileLease(Path(sys.argv[1])).hold())"
    command = [sys.executable, "-c", asks, str(tmp_path / "lock")]
    told = [subprocess.check_output(command, text=True, timeout=HANG_S).strip()]
    lease.let_go()
    told.append(subprocess.check_output(command, text=True, timeout=HANG_S).strip())
    assert told == ["False", "True"]


def test_two_floors_that_are_raised_at_once_stay_within_the_quota(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(cpus=16))
    here.client.patch("/api/v1/projects/default", json={"quota": {"workers": 4}})
    asks = {"workers": {"min": 1, "max": 1}, "batch": {"global_size": 64, "logical_shards": 8}}
    first, second = (here.started(name=name, **asks) for name in ("first", "second"))
    raised, codes = {"min": 3, "max": 3}, []

    def raise_second() -> None:
        answer = here.client.patch(f"/api/v1/jobs/{second}", json={"workers": raised})
        codes.append(answer.json().get("code"))

    other = threading.Thread(target=raise_second, daemon=True)
    with here.control.store.write() as session:  # as another replica does it
        job = session.get_one(Job, first)
        assert quota_left(session, job, here.time()) == 3
        job.spec = {**job.spec, "workers": {**job.spec["workers"], **raised}}
        session.flush()
        other.start()
        other.join(0.5)
    other.join(HANG_S)
    assert codes == ["quota_used_up"]


def test_two_tokens_that_are_made_at_once_stay_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [stage(tmp_path), stage(tmp_path)]
    monkeypatch.setattr(tokens, "MOST", 2)  # one is in the home folder
    told: list[str] = []

    def make(name: str) -> None:
        try:
            both[1].control.tokens.make(Caller("admin", {}, WHOLE, None, None), "admin", name, None, None)
            told.append("made")
        except Conflict as refused:
            told.append(refused.code)

    second = threading.Thread(target=make, args=("second",), daemon=True)
    within = tokens._room_for_one

    def counted(session: Session, user: str, now: datetime) -> None:
        within(session, user, now)
        if threading.current_thread() is not second:
            second.start()
            second.join(0.5)  # as long as it counts before our row is there

    monkeypatch.setattr(tokens, "_room_for_one", counted)
    make("first")
    second.join(HANG_S)
    assert sorted(told) == ["made", "too_many_tokens"]


def test_two_that_take_over_from_each_other_at_any_statement_start_each_attempt_once(tmp_path: Path) -> None:
    """One stops at the first, second, … boundary; its time runs out, the other does its work; then it goes on."""
    cluster = FakeCluster()
    one, other = stage(tmp_path, cluster), stage(tmp_path, cluster)
    for last in itertools.count():
        job_id = one.submit()
        reached = _overtaken_at(one, other, last)
        leases_run_out(other.control.store)
        _work(other)
        assert cluster.starts == [(job_id, 1)], f"overtaken at boundary {last}"
        other.post(job_id, status=status("running"))
        one.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
        _work(other)
        assert (one.state(job_id), cluster.alive) == ("succeeded", {})
        names = ["queued", "starting", "running", "stopping", "succeeded"]
        assert one.events(job_id) == [f"job.{name}" for name in names], f"overtaken at boundary {last}"
        cluster.starts.clear()
        if not reached:
            break
    assert last >= 12, "the sweep must have met the boundaries"


def _work(here: Stage) -> None:
    """A few rounds, as the loop runs them: who was relieved asks again."""
    for _ in range(4):
        with suppress(RoleLeaseLost):
            here.tick()


def _overtaken_at(one: Stage, other: Stage, boundary: int) -> bool:
    """Two rounds of `one`, in the middle of which `other` takes over; False when there is no such boundary."""
    passed = itertools.count()
    takes_over = threading.Thread(target=lambda: (leases_run_out(other.control.store), _work(other)))

    def cut(where: str) -> None:
        if threading.current_thread() is not takes_over and next(passed) == boundary:
            takes_over.start()
            if where != "before commit":  # there it waits for our locks
                takes_over.join(HANG_S)

    store = MortalStore.at(one.home, one.control.settings.database_url)
    assert isinstance(store, MortalStore)
    store.cut = lambda where: None
    reconciler = reconciler_over(one, store)
    leases_run_out(one.control.store)
    store.cut = one.cluster.cut = cut
    with suppress(RoleLeaseLost):
        reconciler.tick()
        reconciler.tick()
    reached = takes_over.ident is not None
    if reached:
        takes_over.join(HANG_S)
        assert not takes_over.is_alive()
    one.cluster.cut = lambda where: None
    store.close()
    return reached


def leases_run_out(store: Store) -> None:
    """The time of whoever holds a role is over."""
    with store.write() as session:
        session.execute(update(RoleLeaseRow).values(expires_at=datetime(2000, 1, 1, tzinfo=UTC)))


def test_the_same_key_sent_to_two_at_once_is_one_job(tmp_path: Path) -> None:
    both = [stage(tmp_path), stage(tmp_path)]
    gate = threading.Barrier(8)
    answers: list[tuple[int, str]] = []

    def submit(n: int) -> None:
        body = {**SPEC, "project": f"p{n % 2}"}
        gate.wait(HANG_S)
        answer = both[n // 2 % 2].client.post(
            "/api/v1/jobs", json=body, headers={"Idempotency-Key": f"k{n % 2}"}
        )
        answers.append((answer.status_code, answer.json()["id"]))

    senders = [threading.Thread(target=submit, args=(n,)) for n in range(8)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(HANG_S)
    assert sorted(code for code, _ in answers) == [200] * 6 + [201] * 2
    jobs = both[0].control.listing.page(Filter(), 50, None, None).items
    assert {job_id for _, job_id in answers} == {job.id for job in jobs}
    assert len(jobs) == 2


def test_a_nul_is_spelt_out_and_what_is_too_large_refused(tmp_path: Path) -> None:
    here = stage(tmp_path)
    job_id = here.running()
    here.post(job_id, records=[line(1, "a\0b")])
    assert here.client.get(f"/api/v1/jobs/{job_id}/logs").json()["items"][0]["line"] == "a\\x00b"
    assert here.client.get("/api/v1/jobs?name=%00").json()["items"] == []
    far = status("running", world_size=1 << 40)
    assert here.post(job_id, status=far, expect=422)["code"] == "invalid"
    assert here.client.get(f"/api/v1/jobs/{job_id}/events?after={1 << 70}").status_code == 422
