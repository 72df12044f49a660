"""The loop between rows and cluster: each attempt started once whatever dies, adopted, retried, ended, released."""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from control_plane import RESULT, FakeCluster, Stage, metric, outcome, stage, status
from sqlalchemy.orm import Session
from test_api_kills import reconciler_over

from ringleader_api.backend import AttemptGone
from ringleader_api.reconciling import loop
from ringleader_api.store import RoleLeaseLost


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def end(
    here: Stage, job_id: str, how: str = "succeeded", attempt: int = 1, code: str = "", **more: Any
) -> None:
    here.post(job_id, attempt=attempt, records=[outcome(1, how, code, **more)])


def test_it_rests_for_what_it_has_computed_and_not_for_what_it_has_waited(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {"waiting": 0.0, "computing": 0.0}

    def waits(where: str) -> None:
        spent["waiting"] += 10
        spent["computing"] += 1 / 64

    class Once(threading.Event):
        rested: float | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.rested = timeout
            self.set()
            return True

    clocks = {"monotonic": lambda: spent["waiting"], "thread_time": lambda: spent["computing"]}
    monkeypatch.setattr(loop, "time", SimpleNamespace(**clocks))
    reconciler, here.cluster.cut = here.control.reconciler, waits
    reconciler._stop = rest = Once()
    reconciler.run(60)
    assert spent["waiting"] >= 20, "before and after each deed"
    assert rest.rested == loop.REST * spent["computing"] < loop.LONGEST_REST_S


def test_a_restarted_control_plane_adopts_what_runs(tmp_path: Path) -> None:
    cluster = FakeCluster()
    here = stage(tmp_path, cluster)
    job_id = here.running()
    here.control.close()
    again = stage(tmp_path, cluster)
    again.tick(3)
    again.time.pass_s(60)
    again.tick(3)
    assert cluster.starts == [(job_id, 1)]
    assert not [t for t in cluster.told if t[0] == "release"]
    again.post(job_id, status=status("running", step=5))
    end(again, job_id, result=RESULT)
    again.tick()
    assert again.state(job_id) == "succeeded"


def test_a_succeeded_job_shows_its_result_once_everything_is_released(here: Stage) -> None:
    here.cluster.lingers = True
    job_id = here.running()
    end(here, job_id, result=RESULT)
    here.tick(2)
    job = here.job(job_id)
    assert (job["state"], job["result"]["scores"]) == ("stopping", {"accuracy": 0.97})
    here.cluster.lingers = False
    here.tick()
    assert here.state(job_id) == "succeeded"
    assert here.cluster.alive == {}


@pytest.mark.parametrize(
    "code",
    ["entrypoint_raised", "entrypoint_import", "no_step", "nonfinite_loss", "out_of_memory", "no_device"],
)
def test_the_users_error_fails_the_job_without_another_attempt(here: Stage, code: str) -> None:
    job_id = here.running()
    end(here, job_id, "failed", code=code)
    here.tick(3)
    job = here.job(job_id)
    assert (job["state"], job["reason"]["code"], job["attempt"]) == ("failed", code, 1)
    assert here.cluster.alive == {}


@pytest.mark.parametrize("code", ["min_workers_lost", "platform_error"])
def test_the_clusters_failures_are_retried_within_the_budget(here: Stage, code: str) -> None:
    job_id = here.submit(max_failures=2)
    for attempt in (1, 2, 3):
        here.tick(2)
        assert here.job(job_id)["attempt"] == attempt
        here.post(job_id, attempt=attempt, status=status("running"))
        end(here, job_id, "failed", attempt, code)
        if attempt < 3:
            assert (here.state(job_id), here.job(job_id)["pending_reason"]["code"]) == ("queued", "retrying")
    here.tick(2)
    job = here.job(job_id)
    assert (job["state"], job["reason"]["code"], job["failures"]) == ("failed", code, {"spent": 2, "max": 2})
    assert here.cluster.starts == [(job_id, n) for n in (1, 2, 3)]
    assert here.cluster.alive == {}


@pytest.mark.parametrize(("ahead", "attempts"), [(0, 3), (9, 3), (10, 9)])
def test_steps_to_which_no_attempt_had_come_give_failures_back(
    here: Stage, ahead: int, attempts: int
) -> None:
    job_id = here.submit(max_failures=2)
    for attempt in range(1, attempts + 1):
        here.tick(2)
        step = 50 + ahead * attempt
        here.post(job_id, attempt=attempt, status=status("running", step=step))
        spent = here.job(job_id)["failures"]["spent"]
        end(here, job_id, "failed", attempt, "platform_error")
        here.tick()
    here.tick()
    assert here.job(job_id)["state"] == ("starting" if ahead == 10 else "failed")
    assert spent == (0 if ahead == 10 else 2)


def test_the_next_attempt_waits_until_the_last_is_gone(here: Stage) -> None:
    here.cluster.lingers = True
    job_id = here.running(workers={"min": 1, "max": 1})
    end(here, job_id, "failed", code="platform_error")
    here.tick(3)
    assert here.cluster.starts == [(job_id, 1)], "two attempts must never live at once"
    here.cluster.lingers = False
    here.tick(2)
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]
    assert set(here.cluster.alive) == {(job_id, 2)}


def test_a_running_job_is_cancelled_by_its_supervisor_within_its_grace(here: Stage) -> None:
    job_id = here.running()
    for _ in range(2):
        answer = here.client.post(f"/api/v1/jobs/{job_id}/cancel", json={"grace_s": 5})
        assert (answer.status_code, answer.json()["state"]) == (202, "stopping")
    here.tick(3)
    assert here.cluster.told == [("cancel", job_id, 1, 5.0)]
    here.post(job_id, records=[metric(1, 0, loss=1.0), outcome(1, "cancelled")])
    here.tick()
    job = here.job(job_id)
    assert (job["state"], job["reason"]["code"]) == ("cancelled", "cancelled")
    assert here.cluster.alive == {}
    assert here.client.get(f"/api/v1/jobs/{job_id}/metrics").json() == {"names": ["loss"]}


def test_a_supervisor_that_does_not_end_is_released_after_its_grace(here: Stage) -> None:
    job_id = here.running()
    here.client.post(f"/api/v1/jobs/{job_id}/cancel", json={"grace_s": 5})
    here.tick(2)
    assert here.state(job_id) == "stopping"
    here.rounds(60)
    assert here.state(job_id) == "cancelled"
    assert here.cluster.alive == {}


def test_a_job_cancelled_between_admission_and_start_never_starts(here: Stage) -> None:
    job_id = here.submit()
    here.cluster.cut = lambda where: (
        (_ for _ in ()).throw(OSError("not now")) if where == "before start" else None
    )
    here.tick()
    assert here.state(job_id) == "starting"
    here.client.post(f"/api/v1/jobs/{job_id}/cancel")
    here.cluster.cut = lambda where: None
    here.tick(2)
    assert (here.state(job_id), here.cluster.starts) == ("cancelled", [])


def test_a_start_that_fails_is_tried_again_and_given_up_in_time(here: Stage) -> None:
    job_id = here.submit(max_failures=0)
    here.cluster.cut = lambda where: (
        (_ for _ in ()).throw(OSError("not now")) if where == "before start" else None
    )
    here.tick(3)
    assert here.state(job_id) == "starting"
    here.cluster.uprooted = {(job_id, 1)}  # it was never asked for, so the cluster knows of no node
    here.rounds(300)
    assert here.state(job_id) == "starting"
    here.rounds(5)
    here.tick()
    assert here.job(job_id)["reason"]["code"] == "platform_error"


def test_an_attempt_whose_supervisor_came_and_went_unconfirmed_is_not_started_again(here: Stage) -> None:
    job_id = here.submit()

    def came_and_went(where: str) -> None:
        if where == "before start":
            raise AttemptGone("attempt 1 has had its supervisor")

    here.cluster.cut = came_and_went
    here.tick(2)
    here.cluster.cut = lambda where: None
    here.tick(2)
    assert here.cluster.starts == [(job_id, 2)]


def test_running_time_is_counted_over_all_attempts_and_ends_the_job(here: Stage) -> None:
    job_id = here.running(max_runtime_s=100)
    here.post(job_id, status=status("running", spent={"wall_s": 60.0}))
    end(here, job_id, "failed", code="platform_error")
    here.time.pass_s(1000)
    here.tick(2)
    here.post(job_id, attempt=2, status=status("running"))
    here.tick()
    here.rounds(39, each=3)
    assert here.state(job_id) == "running"
    here.rounds(1, each=1)
    here.tick()
    assert ("cancel", job_id, 2, 30.0) in here.cluster.told
    end(here, job_id, "cancelled", 2)
    here.tick()
    job = here.job(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", "max_runtime")


def test_jobs_start_in_turn_and_say_why_they_wait(here: Stage) -> None:
    first = here.submit(name="first", workers={"min": 3, "max": 3})
    big = here.submit(name="big", workers={"min": 2, "max": 2})
    small = here.submit(name="small", workers={"min": 1, "max": 1})
    here.tick()
    assert here.cluster.starts == [(first, 1)]
    assert here.job(big)["pending_reason"]["code"] == "waiting_for_capacity"
    assert first in here.job(big)["pending_reason"]["message"]
    assert here.job(small)["pending_reason"]["code"] == "behind_in_queue", (
        "a small job must not starve a big one"
    )
    end(here, first, result=RESULT)
    here.tick(2)
    assert here.cluster.starts == [(first, 1), (big, 1), (small, 1)]
    assert here.job(big)["pending_reason"] is None


def test_an_orphan_of_a_stale_attempt_is_released_and_a_strangers_supervisor_left_alone(here: Stage) -> None:
    job_id = here.running()
    launch = here.cluster.alive[job_id, 1]
    end(here, job_id, "failed", code="platform_error")
    here.tick(2)
    here.cluster.alive[job_id, 1] = launch
    here.cluster.alive["job_of_somebody_else", 1] = launch
    here.tick()
    assert set(here.cluster.alive) == {(job_id, 2), ("job_of_somebody_else", 1)}


class Brief:
    """`Lease`: asked for in time it is kept, 15 s later it is another's."""

    def __init__(self, here: Stage) -> None:
        self._here = here
        self._asked_at = here.time()

    def hold(self) -> bool:
        self._asked_at = self._here.time()
        return True

    def require(self) -> None:
        if (self._here.time() - self._asked_at).total_seconds() > 15:
            raise RoleLeaseLost("another control plane is the reconciler now.")
        self.hold()

    def fence(self, session: Session) -> None:
        self.require()

    def let_go(self) -> None: ...


class Sticky(FakeCluster):
    """Takes 40 s to find out that what `stuck` names still holds something."""

    stuck: Collection[str] = ()
    passes: Callable[[float], None]

    def release(self, job_id: str, attempt: int) -> None:
        super().release(job_id, attempt)
        if job_id in self.stuck:
            self.passes(40)
            raise OSError(f"{job_id} still holds resources")


def test_a_release_that_takes_longer_than_the_role_lasts_is_tried_behind_all_others(tmp_path: Path) -> None:
    cluster = Sticky()
    here = stage(tmp_path, cluster)
    cluster.passes, cluster.lingers = here.time.pass_s, True
    one = {"min": 1, "max": 1}
    first, second, third = (here.submit(name=name, workers=one) for name in ("first", "second", "third"))
    here.tick()
    cluster.stuck = {first, second}
    for job_id in (first, second):
        here.post(job_id, status=status("running", world_size=1), records=[outcome(1, "failed", "no_step")])
    here.client.post(f"/api/v1/jobs/{third}/cancel")
    late = here.submit(name="late", workers=one)
    reconciler = reconciler_over(here, here.control.store, Brief(here))
    for _ in cluster.stuck:
        with pytest.raises(RoleLeaseLost):
            reconciler.tick()
    assert (here.state(late), cluster.told) == ("queued", [("release", first, 1), ("release", second, 1)])
    for stuck in (first, second, first):
        cluster.told.clear()
        reconciler.tick()
        assert cluster.told[-1] == ("release", stuck, 1), "one in a round, in turn, behind the others"
        assert ("release", first if stuck == second else second, 1) not in cluster.told
        assert here.state(late) == "starting"
    cluster.stuck, cluster.lingers = (), False
    for _ in range(3):
        reconciler.tick()
    assert [here.state(job_id) for job_id in (first, second)] == ["failed", "failed"]


def test_one_jobs_trouble_does_not_keep_the_others_waiting(here: Stage) -> None:
    sick = here.running(name="sick", workers={"min": 1, "max": 1})
    here.client.patch(f"/api/v1/jobs/{sick}", json={"workers": {"min": 1, "max": 1}})
    here.client.post(f"/api/v1/jobs/{sick}/cancel")
    here.cluster.cut = lambda where: (
        (_ for _ in ()).throw(OSError("stuck")) if where == "before cancel" else None
    )
    well = here.submit(name="well", workers={"min": 1, "max": 1})
    here.tick()
    assert (well, 1) in here.cluster.starts
