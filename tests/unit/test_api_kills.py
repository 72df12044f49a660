"""The control plane dies between any two statements: what was accepted and asked is done once by the one after it."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from control_plane import RESULT, Stage, outcome, stage, status
from sqlalchemy.orm import Session

from ringleader_api.reconciling import (
    AttemptLauncher,
    Autoscaling,
    ClusterSampling,
    Reconciler,
    Retention,
    RoleLeasedBackend,
    SpoolRecovery,
    Sweeping,
)
from ringleader_api.scheduling import Limits
from ringleader_api.store import Fenced, RoleLease, Store, lease_for
from ringleader_api.store.audit import AuditedAction


class Killed(BaseException):
    """The process dies here."""


class Failed(Exception):
    """The same in a request: who sent it gets no answer that says anything."""


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_an_accepted_job_is_started_once_whatever_statement_the_process_dies_at(here: Stage) -> None:
    """Dies at the first, second, … boundary between a deed or commit and the next; a new process goes on."""
    here.control.store.__class__ = MortalStore
    _live(here)
    for last in itertools.count():
        job_id = here.submit()
        _, survived = _asked_and_dies_at(here, last, lambda: 200)
        _live(here)
        here.tick(2)
        assert here.cluster.calls == {(job_id, 1): 1}, f"died at boundary {last}"
        here.post(job_id, status=status("running"))
        assert here.state(job_id) == "running"
        assert here.events(job_id) == ["job.queued", "job.starting", "job.running"]
        _end_all(here, job_id)
        if survived:
            break
    assert last >= 8, "the sweep must have met the boundaries"


def _says(method: str, path: str, body: Any = None) -> Callable[[Stage, str], int]:
    """A user's request about a job; answers its status."""
    return lambda here, job_id: (
        here.client.request(method, f"/api/v1/jobs/{job_id}{path}", json=body).status_code
    )


def _ends(how: str, code: str = "", **more: Any) -> Callable[[Stage, str], int]:
    """A supervisor's last post."""

    def post(here: Stage, job_id: str) -> int:
        token = here.cluster.alive[job_id, 1].ingest_token
        body = {"attempt": 1, "records": [outcome(1, how, code, **more)]}
        # Not entered: that would start the control plane's threads, whose reconciler goes on beside the test's.
        return here.holding(token).post(f"/api/v1/jobs/{job_id}/ingest", json=body).status_code

    return post


@dataclass(frozen=True)
class Asked:
    """What is asked of a running job, the events and orders that follow from it, the end that is posted then, and how
    many attempts there are in the end."""

    ask: Callable[[Stage, str], int]
    events: list[str]
    told: list[tuple[Any, ...]]
    then: str = ""
    attempts: int = 1


ASKED = {
    "resize": Asked(_says("PATCH", "", {"workers": {"max": 2}}), ["workers.resized"], [("resize", 1, 2)]),
    "cancel": Asked(
        _says("POST", "/cancel"),
        ["job.stopping", "job.cancelled"],
        [("cancel", 30.0), ("release",)],
        then="cancelled",
    ),
    "pause": Asked(
        _says("POST", "/pause"),
        ["job.stopping", "job.paused"],
        [("pause", 600.0), ("release",)],
        then="paused",
    ),
    "outcome": Asked(_ends("succeeded", result=RESULT), ["job.stopping", "job.succeeded"], [("release",)]),
    "failure": Asked(
        _ends("failed", "platform_error"), ["job.queued", "job.starting"], [("release",)], attempts=2
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_of_a_running_job_is_done_once_whatever_statement_the_process_dies_at(
    here: Stage, name: str
) -> None:
    """Dies in the request too, which is then sent again; orders that a supervisor takes twice may be given twice."""
    asked, cluster = ASKED[name], here.cluster
    here.control.store.__class__ = MortalStore
    _live(here)
    for last in itertools.count():
        job_id = here.running(workers={"min": 1, "max": 3})
        cluster.told.clear()
        answered, survived = _asked_and_dies_at(here, last, partial(asked.ask, here, job_id))
        _live(here)
        if not answered:  # 409: its attempt is over, which ends a supervisor
            assert asked.ask(here, job_id) in (200, 202, 409)
        here.tick(2)
        if asked.then:
            here.post(job_id, records=[outcome(1, asked.then)])
            here.tick()
        where = f"died at boundary {last}"
        assert here.events(job_id) == ["job.queued", "job.starting", "job.running", *asked.events], where
        assert cluster.calls == {(job_id, 1 + n): 1 for n in range(asked.attempts)}, where
        told = Counter((order, *rest) for order, _, _, *rest in cluster.told)
        told.pop(("resize", 1, 3), None)  # the bounds, for a supervisor that was adopted
        assert (set(told), max(told.values()) <= 2) == (set(asked.told), True), where
        _end_all(here, job_id)
        if survived:
            break
    assert last >= 8, "the sweep must have met the boundaries"


def _live(here: Stage) -> None:
    """A new process, which nothing befalls."""
    here.control.store.cut = here.cluster.cut = lambda where: None
    here.control.reconciler = reconciler_over(here, here.control.store)


def _asked_and_dies_at(here: Stage, boundary: int, ask: Callable[[], int]) -> tuple[bool, bool]:
    """Whether the request was answered, and whether there were not that many boundaries in it and two rounds."""
    passed, ways = itertools.count(), [Failed, Killed]

    def cut(where: str) -> None:
        if next(passed) == boundary:
            raise ways[0](where)

    here.control.store.cut = here.cluster.cut = cut
    answered = ask() in (200, 202)
    try:
        if answered:
            ways.pop(0)
            here.tick(2)
    except Killed:
        pass
    return answered, next(passed) <= boundary


def _end_all(here: Stage, job_id: str) -> None:
    """Nothing is left of the job for the next one."""
    for _, attempt in list(here.cluster.alive):
        here.client.post(f"/api/v1/jobs/{job_id}/cancel")
        here.post(job_id, attempt=attempt, records=[outcome(1, "cancelled")])
        here.tick()
    assert here.cluster.alive == {}
    here.cluster.calls.clear()


def reconciler_over(here: Stage, store: Store, lease: RoleLease | None = None) -> Reconciler:
    """One that works over `store`, with a lease of its own."""
    lease = lease or lease_for(store, here.home, "reconciler", lasts_s=60)
    ours, cluster = Fenced(store, lease), RoleLeasedBackend(here.cluster, lease)
    control = here.control
    launching = AttemptLauncher(
        ours,
        cluster,
        control.packages,
        control.secrets,
        telemetry=control.telemetry,
        now=here.time,
        ingest_base="http://x",
        home=here.home,
    )
    return Reconciler(
        ours,
        cluster,
        launching,
        Autoscaling(cluster, None, here.time, cool_down_s=0, patience_s=1),
        here.time,
        inheriting=SpoolRecovery(cluster, control.intake, here.home),
        forgetting=Retention(ours, cluster.forget, here.home, False, here.time, kept=None),
        sweeping=Sweeping(ours, control.submissions, here.time),
        sampling=ClusterSampling(ours, here.time),
        lease=lease,
        limits=Limits(),
        cluster_seen=lambda up: None,
    )


class MortalStore(Store):
    """A store with a boundary before each transaction, before its commit and after it."""

    cut: Callable[[str], None]

    @contextmanager
    def write(self, deeds: Sequence[AuditedAction] | None = None) -> Iterator[Session]:
        self.cut("before write")
        with super().write(deeds) as session:
            yield session
            self.cut("before commit")
        self.cut("after commit")
