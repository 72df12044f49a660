"""The control plane dies between any two statements of an alert's way: it arrives, and doubles carry one id."""

import itertools
from collections import Counter
from contextlib import suppress
from pathlib import Path

from control_plane import Stage, event, stage
from receivers import receiver
from test_api_kills import Killed, MortalStore

from ringleader_api.alerting.sender import Alerting

LIVES = 5
"""Rounds of a process that nothing befalls, each some seconds behind the last."""


def alerting_of(here: Stage) -> Alerting:
    control = here.control
    return Alerting.of(control.settings, control.store, control.secrets, here.time)


def test_each_alert_arrives_whatever_statement_the_process_dies_at(tmp_path: Path) -> None:
    here = stage(tmp_path, alert_hosts="127.0.0.0/8")
    store = here.control.store
    store.__class__ = MortalStore
    assert isinstance(store, MortalStore)
    store.cut = lambda where: None
    here.client.post("/api/v1/projects", json={"name": "default"})
    here.client.put("/api/v1/secrets/default/HOOK", json={"value": "a-key-of-the-hook"})
    here.control.alerting.lease.let_go()
    with receiver() as hook:
        body = {"when": {"worker_lost": True}, "channels": [{"webhook": hook.url, "secret": "HOOK"}]}
        assert here.client.put("/api/v1/projects/default/alerts/lost", json=body).status_code == 200
        job_id = here.running()
        for last in itertools.count():
            hook.posted.clear()
            here.post(job_id, records=[event(last + 1, "worker.lost", worker=f"w{last}", cause="died")])
            survived = _dies_at(here, store, last)
            after = alerting_of(here)
            for _ in range(LIVES):
                here.time.pass_s(5)
                after.tick()
            after.lease.let_go()
            ids = Counter(posted.headers["webhook-id"] for posted in hook.posted)
            assert len(ids) == 1, f"died at boundary {last}: {ids}"
            if survived:
                break
    assert last >= 5, "the sweep must have met the boundaries"
    here.control.close()


def _dies_at(here: Stage, store: MortalStore, boundary: int) -> bool:
    """Whether there were not that many boundaries in the life of a process."""
    passed = itertools.count()

    def cut(where: str) -> None:
        if next(passed) == boundary:
            raise Killed(where)

    store.cut = cut
    dying = alerting_of(here)
    # In a group where it dies in a task of its own.
    with suppress(Killed, BaseExceptionGroup):
        dying.tick()
    store.cut = lambda where: None
    dying.lease.let_go()
    return next(passed) <= boundary
