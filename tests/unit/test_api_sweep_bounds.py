"""What sweeps may take of the control plane: how many there are, what a round does for them, how long they stay, and
what one in disorder costs the others."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from control_plane import Stage, stage
from sqlalchemy import select
from test_api_sweeps import SWEEP, make

from ringleader.spec.sweep import SweepSpec
from ringleader.wire.sweeps import SweepState
from ringleader_api.alerting.addresses import Allowed
from ringleader_api.reconciling import Sweeping
from ringleader_api.scheduling.sweep_points import Point, Told
from ringleader_api.services.alert_checks import ChannelChecks
from ringleader_api.services.jobs.submission import Submissions
from ringleader_api.services.sweeps.sweeps import MOST_OPEN
from ringleader_api.services.users.accounts import Accounts
from ringleader_api.store import Fenced
from ringleader_api.store.sweeps import Sweep, SweepTrial


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_a_trial_is_submitted_without_a_look_up_of_the_hosts_of_its_alerts(here: Stage) -> None:
    control, asked = here.control, list[str]()

    def look_up(host: str, port: int, within_s: float) -> list[str]:
        asked.append(host)
        return ["1.1.1.1"]

    channels = ChannelChecks(control.store, control.secrets, Allowed(), mails=False, look_up=look_up)
    submissions = Submissions(
        control.store, here.time, control.secrets, Accounts.of(control.settings), channels
    )
    here.client.post("/api/v1/projects", json={"name": "default"})
    assert (
        here.client.put("/api/v1/secrets/default/HOOK", json={"value": "a-key-of-the-hook"}).status_code
        == 200
    )
    channel = {"webhook": "https://1.1.1.1/x", "secret": "HOOK"}
    template = {
        **SWEEP["template"],
        "alerts": [{"name": "x", "when": {"state": "failed"}, "channels": [channel]}],
    }
    make(here, template=template)
    lease = control.leases[0]
    assert lease.hold()
    Sweeping(Fenced(control.store, lease), submissions, here.time).advance()
    assert len(here.client.get("/api/v1/jobs").json()["items"]) == 2
    assert asked == []


def test_a_draw_knows_of_those_before_it_in_the_same_round(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.client.post("/api/v1/projects", json={"name": "default"})
    row = sweep_row(0, spec={**SWEEP, "method": "optuna", "trials": 3})
    with here.control.store.write() as session:
        session.add(row)
        session.flush()
        for number in range(3):
            session.add(SweepTrial(sweep_id=row.id, number=number, scores=[], scored_at=[]))
    told_of: list[list[Any]] = []

    def suggested(sweep: SweepSpec, number: int, told: Sequence[Told]) -> Point:
        told_of.append([one.point["params.lr"] for one in told])
        return {"params.lr": number / 10}

    monkeypatch.setattr("ringleader_api.reconciling.sweeping.suggested", suggested)
    here.tick()
    assert told_of == [[], [0.0]]


def test_a_project_has_a_bounded_number_of_open_sweeps(here: Stage) -> None:
    with here.control.store.write() as session:
        for number in range(MOST_OPEN):
            session.add(sweep_row(number))
    refused = here.client.post("/api/v1/sweeps", json=SWEEP)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_sweeps")
    assert "20" in refused.json()["detail"]
    assert "cancel" in refused.json()["hint"]
    make(here, project="other")
    with here.control.store.write() as session:
        session.get_one(Sweep, sweep_row(0).id).closed = True
    make(here)


def test_a_sweep_whose_file_is_none_to_this_version_hides_no_other(here: Stage) -> None:
    trials = make(here)
    with here.control.store.write() as session:
        session.add(sweep_row(0, spec={**SWEEP, "metric": {"name": "loss", "gaol": 1}}))
    listed = here.client.get("/api/v1/sweeps")
    assert (listed.status_code, [one["id"] for one in listed.json()["items"]]) == (200, [trials.sweep_id])


def sweep_row(number: int, **changes: Any) -> Sweep:
    row: dict[str, Any] = {
        "id": f"sweep_{number:026}",
        "name": "lr",
        "project": "default",
        "owner": "admin",
        "scope": {},
        "spec": SWEEP,
        "state": SweepState.RUNNING,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "body_sha256": "",
    }
    return Sweep(**{**row, **changes})


def test_a_closed_sweep_goes_with_its_trials_once_its_time_is_over(tmp_path: Path) -> None:
    here = stage(tmp_path, jobs_kept_days=30)
    here.client.post("/api/v1/projects", json={"name": "default"})
    with here.control.store.write() as session:
        for number, days in enumerate((0, 29)):
            over = here.time() + timedelta(days=days)
            session.add(sweep_row(number, state=SweepState.FAILED, finished_at=over, closed=True))
            session.flush()
            session.add(SweepTrial(sweep_id=sweep_row(number).id, number=0, scores=[], scored_at=[]))

    def stored() -> list[str]:
        here.tick()
        with here.control.store.read() as session:
            return [*session.scalars(select(Sweep.id)), *session.scalars(select(SweepTrial.sweep_id))]

    both = [sweep_row(0).id, sweep_row(1).id]
    assert sorted(stored()) == sorted(both * 2)
    here.time.pass_s(31 * 86_400)
    assert stored() == both[1:] * 2
