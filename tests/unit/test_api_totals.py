"""What a job has cost is counted over all its attempts: lost steps, recoveries, generations and time."""

from pathlib import Path
from typing import Any

import pytest
from control_plane import RESULT, Stage, event, metric, outcome, saved, stage, status

from ringleader.wire.findings import ELSEWHERE

SPENT = {
    "wall_s": 10.0,
    "compute_s": 6.0,
    "exposed_communication_s": 2.0,
    "idle_s": 1.0,
    "recovery_s": 0.5,
}


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def lost(here: Stage, job_id: str) -> None:
    """The attempt's supervisor is gone, and the next one is there."""
    here.cluster.alive.clear()
    here.tick()
    here.time.pass_s(2)
    here.tick(2)
    assert here.state(job_id) == "starting"


def totals(here: Stage, job_id: str) -> dict[str, Any]:
    return dict(here.job(job_id)["totals"])


def restored(here: Stage, job_id: str) -> list[dict[str, Any]]:
    items = here.client.get(f"/api/v1/jobs/{job_id}/events?limit=1000").json()["items"]
    return [e["data"] for e in items if e["type"] in ("checkpoint.restored", "checkpoint.none")]


def test_steps_that_the_next_attempt_trains_again_are_lost_and_counted_where_it_begins(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, status=status("running", step=80), records=[saved(job_id, 1, 72)])
    lost(here, job_id)
    assert totals(here, job_id)["steps_lost"] == 0, "nobody knows yet with which one it begins"
    here.post(
        job_id, 2, status=status("running"), records=[event(1, "checkpoint.restored", step=72, attempt=1)]
    )
    assert restored(here, job_id) == [{"step": 72, "attempt": 1, "steps_lost": 8}]
    here.post(job_id, 2, records=[event(2, "checkpoint.restored", step=72, attempt=1)])
    assert totals(here, job_id)["steps_lost"] == 8, "told twice, lost once"
    here.post(job_id, 2, status=status("running", step=75))
    lost(here, job_id)
    here.post(
        job_id, 3, status=status("running"), records=[event(1, "checkpoint.restored", step=64, attempt=1)]
    )
    assert totals(here, job_id)["steps_lost"] == 8 + 11, "the newest could not be read"


def test_an_attempt_that_begins_from_nothing_has_lost_every_step(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, status=status("running", step=80))
    lost(here, job_id)
    here.post(job_id, 2, status=status("running"), records=[event(1, "checkpoint.none", step=0)])
    assert totals(here, job_id)["steps_lost"] == 80


def test_steps_that_only_a_dead_supervisors_spool_tells_of_are_lost_too(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, status=status("running", step=3))
    here.cluster.left[job_id, 1] = [metric(1, 5, loss=1.0)]
    lost(here, job_id)
    here.post(job_id, 2, records=[event(1, "checkpoint.none", step=0)])
    assert totals(here, job_id)["steps_lost"] == 5


def test_where_a_job_goes_on_is_said_when_its_attempt_ends(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, status=status("running", step=80), records=[saved(job_id, 1, 72)])
    here.cluster.alive.clear()
    here.cluster.nodes = []
    here.tick()
    here.time.pass_s(2)
    here.tick()
    told = here.client.get(f"/api/v1/jobs/{job_id}/events?limit=1000").json()["items"]
    why = [
        e["data"]["reason"]["message"] for e in told if e["type"] == "job.queued" and "reason" in e["data"]
    ]
    assert (
        "attempt 2 follows, starting from step 72, the newest checkpoint; 8 steps will be trained again"
        in why[-1]
    )


def test_why_an_attempt_ended_is_one_sentence_with_what_follows(here: Stage) -> None:
    job_id = here.running()
    message = "every worker that held the state of step 9 was lost."
    told = outcome(1, "failed", "platform_error")
    told["reason"] |= {"message": message}
    here.post(job_id, status=status("running", step=9), records=[told])
    reason = here.job(job_id)["pending_reason"]["message"]
    assert reason.startswith(
        f"attempt 1 ended ({message.removesuffix('.')}); attempt 2 follows, starting from"
    )


def test_recoveries_generations_and_time_are_those_of_all_attempts(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, status=status("running", step=9, spent=SPENT) | {"generation": 3})
    here.post(job_id, records=[event(1, "recovered", total_s=0.1, steps_lost=1)])
    lost(here, job_id)
    here.post(job_id, 2, status=status("running"), records=[event(1, "checkpoint.none", step=0)])
    here.post(job_id, 2, status=status("running", step=9, spent=SPENT) | {"generation": 2})
    now = totals(here, job_id)
    assert (now["attempts"], now["generations"], now["recoveries"], now["steps_lost"]) == (2, 5, 1, 10)
    assert (now["wall_s"], now["recovery_s"]) == (20.0, 1.0)
    here.post(job_id, 2, records=[outcome(2, "succeeded", result=RESULT)])
    here.tick(2)
    job = here.job(job_id)
    result = job["result"]
    assert (result["attempts"], result["generations"], result["recoveries"], result["steps_lost"]) == (
        2,
        5,
        1,
        10,
    )
    assert (result["wall_s"], result["compute_s"]) == (20.0, 12.0), (
        "who finished was not there from the start"
    )
    assert job["totals"] == {name: result[name] for name in job["totals"]}


@pytest.mark.parametrize("told", [-1, True, "9", 1 << 62, None])
def test_what_is_no_number_of_steps_is_not_counted(here: Stage, told: object) -> None:
    job_id = here.running()
    here.post(job_id, records=[event(1, "recovered", steps_lost=told)])
    assert totals(here, job_id)["steps_lost"] == 0


@pytest.mark.parametrize("lie", [-5.0, 1e308])
def test_a_job_that_lies_about_its_time_and_generations_harms_nobody(here: Stage, lie: float) -> None:
    """Sums of what it tells stay numbers that every answer can hold."""
    job_id = here.running(max_failures=9)
    told = {"spent": {"wall_s": lie, "idle_s": lie}, "generation": (1 << 31) - 1}
    for attempt in (1, 2):
        here.post(job_id, attempt, status=status("running", step=attempt) | told)
        lost(here, job_id)
    here.post(job_id, 3, status=status("running") | told)
    now = totals(here, job_id)
    assert 0.0 <= now["wall_s"] <= 1e12
    assert now["generations"] >= (1 << 31) - 1
    assert here.client.get("/api/v1/jobs").status_code == 200
    here.post(
        job_id, 3, records=[outcome(2, "succeeded", result=RESULT | {"wall_s": lie, "generations": 1 << 31})]
    )
    here.tick(2)
    assert (here.state(job_id), here.client.get("/api/v1/jobs").status_code) == ("succeeded", 200)


HOW = "has another value when its lines run again"
FOUND = {"variable": "rate", "line": "train.py:4", "how": HOW, "cure": "keep it"}
SENTENCE = f"the program's rate (train.py:4) {HOW}: keep it"


def reproducible(here: Stage, job_id: str) -> tuple[bool, str]:
    result = here.job(job_id)["result"]
    return result["reproducible"], result["reproducible_why"]


@pytest.mark.parametrize("before", [{}, {"beforehand": True, "cure": "nothing has gone wrong yet: keep it"}])
def test_what_a_worker_has_found_that_is_gone_is_in_the_result(before: dict[str, Any], here: Stage) -> None:
    job_id = here.running()
    other = {**FOUND, "variable": "the kept object 'ema'", "line": "train.py:9"}
    found = [event(1, "program.differs", **FOUND | before), event(2, "program.differs", **other)]
    again = event(3, "program.differs", **FOUND)  # from a second worker
    here.post(job_id, records=[*found, again, outcome(1, "succeeded", result=RESULT)])
    assert reproducible(here, job_id) == (False, f"{SENTENCE}; also the kept object 'ema' (train.py:9)")


def test_what_an_earlier_attempt_has_found_is_in_the_result(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, status=status("running", step=80), records=[event(1, "program.differs", **FOUND)])
    lost(here, job_id)
    here.post(
        job_id, 2, status=status("running"), records=[event(1, "checkpoint.restored", step=72, attempt=1)]
    )
    here.post(job_id, 2, records=[outcome(1, "succeeded", result=RESULT)])
    assert reproducible(here, job_id) == (False, SENTENCE)


def test_what_the_last_workers_know_too_is_in_the_result_once(here: Stage) -> None:
    job_id = here.running()
    told = RESULT | {"reproducible": False, "reproducible_why": f"machines differ; {SENTENCE}"}
    records = [event(1, "program.differs", **FOUND), outcome(1, "succeeded", result=told)]
    here.post(job_id, records=records)
    assert reproducible(here, job_id) == (False, f"machines differ; {SENTENCE}")


def test_the_event_names_what_the_last_workers_have_only_heard_of(here: Stage) -> None:
    for found in ([], [event(1, "program.differs", **FOUND)]):
        job_id = here.running()
        told = RESULT | {"reproducible": False, "reproducible_why": ELSEWHERE}
        here.post(job_id, records=[*found, outcome(1, "succeeded", result=told)])
        assert reproducible(here, job_id) == (False, SENTENCE if found else ELSEWHERE)


def test_an_exception_that_joiners_alone_would_raise_changes_no_bits(here: Stage) -> None:
    job_id = here.running()
    raised = FOUND | {"variable": "an exception", "beforehand": True, "raises": True}
    here.post(job_id, records=[event(1, "program.differs", **raised), outcome(1, "succeeded", result=RESULT)])
    assert reproducible(here, job_id) == (True, "")
