"""Faults on purpose: who may inject them, into what, and what is kept of them."""

import socket
from pathlib import Path
from typing import Any

import pytest
from control_plane import Stage, stage
from fastapi.testclient import TestClient

from ringleader.runtime.nodes import environment
from ringleader.runtime.nodes.cluster import FaultMissed, RayCluster
from ringleader_api.backend import NobodyThere, RayBackend

FAULT = {"fault": "kill", "worker": "w1"}


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def inject(here: Stage, job_id: str, client: TestClient | None = None, **fault: Any) -> tuple[int, Any]:
    answer = (client or here.client).post(f"/api/v1/jobs/{job_id}/faults", json=fault or FAULT)
    return answer.status_code, answer.json()


def harmed(here: Stage) -> list[tuple[Any, ...]]:
    return [told for told in here.cluster.told if told[0] == "fault"]


def test_a_job_that_says_nothing_of_faults_is_not_harmed(here: Stage) -> None:
    status, problem = inject(here, here.running())
    assert (status, problem["code"]) == (403, "faults_refused")
    assert harmed(here) == []


def test_a_job_that_allows_faults_is_harmed_once_and_event_and_audit_log_say_by_whom(here: Stage) -> None:
    job_id = here.running(debug={"faults": True})
    status, done = inject(here, job_id)
    assert (status, done["target"], done["effect"]) == (200, "w1", "kill to process 7")
    assert harmed(here) == [("fault", job_id, 1, "kill", "w1", 30.0)]
    assert here.events(job_id)[-1] == "fault.injected"
    row = here.client.get("/api/v1/audit").json()["items"][0]
    assert (row["who"], row["target"], row["outcome"]) == ("admin", job_id, "done")
    assert row["path"].endswith("/faults")


def test_a_control_plane_may_allow_faults_for_all_jobs(tmp_path: Path) -> None:
    here = stage(tmp_path, allow_faults=True)
    assert inject(here, here.running(), fault="supervisor")[0] == 200
    assert harmed(here)[0][3:5] == ("supervisor", None)


def test_it_takes_an_operator_also_for_ones_own_job(here: Stage) -> None:
    job_id = here.running(debug={"faults": True})
    found = {
        role: inject(here, job_id, here.user(role, default=role))[0] for role in ("submitter", "operator")
    }
    assert found == {"submitter": 403, "operator": 200}


def test_a_job_that_is_not_at_work_and_a_member_that_is_not_there_are_conflicts(here: Stage) -> None:
    queued = here.submit(debug={"faults": True})
    assert inject(here, queued)[1]["code"] == "not_at_work"
    running = here.running(debug={"faults": True}, workers={"min": 1, "max": 1})
    status, problem = inject(here, running, fault="kill", worker="nobody")
    assert (status, problem["code"]) == (409, "no_such_member")
    assert "fault.injected" not in here.events(running)


@pytest.mark.parametrize(
    "body", [{"fault": "kill"}, {"fault": "supervisor", "worker": "w1"}, {"fault": "maim", "worker": "w1"}]
)
def test_a_fault_that_is_none_or_has_no_victim_is_refused(here: Stage, body: dict[str, Any]) -> None:
    assert inject(here, here.running(debug={"faults": True}), **body)[0] == 422
    assert harmed(here) == []


class Connected:
    """A connection to a cluster that is never asked for anything."""

    def call(self, method: str, *_: object) -> object:
        raise AssertionError(f"{method} was asked for")


def test_with_the_head_gone_nobody_is_there_and_ray_is_not_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        backend = RayBackend(f"127.0.0.1:{head.getsockname()[1]}", warm_per_node=0)
    backend._connected = Connected()  # type: ignore[assignment]
    with pytest.raises(NobodyThere, match="cannot be reached: no Ray head answers at"):
        backend.fault("job", 1, "kill", "w1", 1.0)


@pytest.mark.parametrize("name", ["RaySystemError", "GetTimeoutError"])
def test_what_ray_raises_of_a_fault_is_that_nobody_answered(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import exceptions

    def broken(*_: object) -> None:
        raise getattr(exceptions, name)("not initialized")

    cluster = RayCluster("test")
    monkeypatch.setattr(cluster, "_supervisor", broken)
    with pytest.raises(FaultMissed, match=name):
        cluster.fault("job", 1, "kill", "w1", 1.0)


def test_ray_starts_no_cluster_of_its_own_in_a_process_that_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    set_there: dict[str, str] = {}
    monkeypatch.setattr("os.environ", set_there)
    environment.for_address("127.0.0.1:6379")
    assert set_there["RAY_ENABLE_AUTO_CONNECT"] == "0"
