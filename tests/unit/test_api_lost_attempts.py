"""Supervisors that vanish, with their node or the cluster: an attempt is spent, never the job, and nothing is lost."""

from pathlib import Path

import pytest
from control_plane import RESULT, Stage, event, metric, outcome, raising, stage, status

from ringleader_api.store import RoleLeaseLost


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_a_vanished_supervisor_costs_an_attempt_not_the_job(here: Stage) -> None:
    job_id = here.running()
    gone = here.cluster.alive.pop((job_id, 1))
    here.tick()
    assert here.state(job_id) == "running", "one look is no proof"
    here.cluster.alive[job_id, 1] = gone
    here.tick()
    here.time.pass_s(10)
    here.tick()
    assert here.state(job_id) == "running", "it was back in between"
    del here.cluster.alive[job_id, 1]
    here.tick()
    here.time.pass_s(2)
    here.tick(2)
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]
    assert here.job(job_id)["failures"]["spent"] == 1


def test_what_a_vanished_supervisor_had_not_posted_is_taken_in_once_before_the_next_attempt(
    here: Stage,
) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(1, 0, loss=3.0), metric(2, 1, loss=2.0)])
    told = [
        metric(2, 1, loss=2.0),
        metric(3, 2, loss=1.0),
        {"stream": "metrics", "seq": 4},
        event(1, "checkpoint.saved", step=2),
    ]
    here.cluster.left[job_id, 1] = told
    here.cluster.alive.clear()
    here.tick()
    here.time.pass_s(2)
    here.cluster.cut = raising("after unposted", RoleLeaseLost("reconciler"))
    with pytest.raises(RoleLeaseLost):
        here.tick()
    here.cluster.cut, here.cluster.left[job_id, 1] = lambda where: None, told
    here.tick(2)
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]
    curve = here.client.get(f"/api/v1/jobs/{job_id}/metrics?name=loss").json()["points"]
    assert [(point["step"], point["value"]) for point in curve] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    events = here.events(job_id)
    assert events.index("checkpoint.saved") < events.index("job.queued", 1)
    assert events.count("checkpoint.saved") == 1


def test_a_job_whose_vanished_supervisor_had_written_down_its_end_has_ended(here: Stage) -> None:
    job_id = here.running()
    here.cluster.left[job_id, 1] = [metric(1, 0, loss=3.0), outcome(1, "succeeded", result=RESULT)]
    here.cluster.alive.clear()
    here.tick()
    here.time.pass_s(2)
    here.tick(2)
    assert (here.state(job_id), here.cluster.starts) == ("succeeded", [(job_id, 1)])


def test_a_spool_that_cannot_be_read_costs_no_job(here: Stage) -> None:
    job_id = here.running()
    here.cluster.cut = raising("before unposted", OSError("input/output error"))
    here.cluster.alive.clear()
    here.tick()
    here.time.pass_s(2)
    here.tick(2)
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]


def test_a_supervisor_that_was_heard_and_vanished_before_it_was_confirmed_costs_an_attempt_not_the_job(
    here: Stage,
) -> None:
    job_id = here.submit()
    here.cluster.cut = raising("after start", ConnectionError("no answer"))
    here.tick()
    here.cluster.cut = lambda where: None
    here.post(job_id, status=status("running"))
    here.cluster.alive.clear()
    here.tick()
    assert here.state(job_id) == "running"
    here.time.pass_s(2)
    here.tick(2)
    assert (here.state(job_id), here.cluster.starts) == ("starting", [(job_id, 1), (job_id, 2)])


def test_an_attempt_lost_with_its_node_or_the_whole_cluster_spends_no_failure(here: Stage) -> None:
    job_id = here.running(max_failures=1)
    for attempt in (1, 2, 3):
        here.post(job_id, attempt=attempt, status=status("running", failures_spent=int(attempt == 1)))
        here.cluster.alive.clear()
        here.cluster.uprooted = {(job_id, attempt)}
        here.tick()
        here.time.pass_s(2)
        here.tick(2)
        job = here.job(job_id)
        assert (job["state"], job["attempt"]) == ("starting", attempt + 1)
        assert job["failures"]["spent"] == 1, (
            "a worker's death in the first attempt stays spent, and nothing is added"
        )
    queued = [
        e
        for e in here.client.get(f"/api/v1/jobs/{job_id}/events").json()["items"]
        if e["type"] == "job.queued"
    ]
    assert "this does not count against max_failures" in queued[-1]["data"]["reason"]["hint"]


def test_without_budget_a_vanished_supervisor_fails_the_job(here: Stage) -> None:
    job_id = here.running(max_failures=0)
    here.cluster.alive.clear()
    here.tick()
    here.time.pass_s(2)
    here.tick(2)
    job = here.job(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", "platform_error")
    assert "disappeared" in job["reason"]["message"]


def test_while_the_cluster_is_out_of_reach_nothing_is_relaunched_or_lost(here: Stage) -> None:
    job_id = here.running()
    waiting = here.submit(name="later", workers={"min": 1, "max": 1})
    here.cluster.down = True
    here.tick()
    here.time.pass_s(600)
    here.tick()
    assert here.state(job_id) == "running"
    reason = here.job(waiting)["pending_reason"]
    assert reason["code"] == "cluster_unreachable"
    assert "the head is gone" in reason["message"]
    here.cluster.down = False
    here.tick()
    assert here.cluster.starts == [(job_id, 1), (waiting, 1)]
