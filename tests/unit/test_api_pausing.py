"""A paused job holds nothing, keeps what it was, and goes on as its next attempt."""

from pathlib import Path

import pytest
from control_plane import RESULT, Stage, event, metric, outcome, place, saved, stage, status

from ringleader_api.reconciling.facts import PAUSE_GRACE_S
from ringleader_api.scheduling.lifecycle import TEARDOWN_S


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def pause(here: Stage, job_id: str) -> int:
    return here.client.post(f"/api/v1/jobs/{job_id}/pause").status_code


def resume(here: Stage, job_id: str) -> int:
    return here.client.post(f"/api/v1/jobs/{job_id}/resume").status_code


def paused(here: Stage, **changes: object) -> str:
    job_id = here.running(**changes)
    assert pause(here, job_id) == 202
    here.tick()
    here.post(job_id, records=[outcome(1, "paused")])
    here.tick(2)
    assert here.state(job_id) == "paused"
    return job_id


def test_a_job_is_paused_by_its_supervisor_and_lets_go_of_the_cluster(here: Stage) -> None:
    job_id = here.running()
    assert [pause(here, job_id), pause(here, job_id)] == [202, 202]
    assert here.state(job_id) == "stopping"
    here.tick(3)
    assert here.cluster.told == [("pause", job_id, 1, PAUSE_GRACE_S)]
    here.post(job_id, records=[outcome(1, "paused")])
    here.tick()
    job = here.job(job_id)
    assert (job["state"], job["reason"]["code"], job["world_size"]) == ("paused", "paused", 0)
    assert (job["finished_at"], here.cluster.alive) == (None, {})
    here.tick()
    assert pause(here, job_id) == 202
    assert here.cluster.starts == [(job_id, 1)]


def test_what_waits_takes_the_place_of_a_paused_job(here: Stage) -> None:
    first = here.running(workers={"min": 3, "max": 3})
    second = here.submit(name="second", workers={"min": 3, "max": 3})
    here.tick()
    assert here.state(second) == "queued"
    pause(here, first)
    here.tick()
    here.post(first, records=[outcome(1, "paused")])
    here.tick(2)
    assert here.cluster.starts == [(first, 1), (second, 1)]


def test_resume_is_the_next_attempt_and_spends_no_failure(here: Stage) -> None:
    job_id = paused(here)
    assert resume(here, job_id) == 202
    job = here.job(job_id)
    assert (job["state"], job["reason"]) == ("queued", None)
    here.tick()
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]
    assert resume(here, job_id) == 202
    here.post(job_id, attempt=2, status=status("running"))
    assert here.job(job_id)["failures"]["spent"] == 0
    assert (here.state(job_id), resume(here, job_id), here.state(job_id)) == ("running", 202, "running")


def test_an_attempt_whose_machines_go_away_is_queued_again_and_spends_no_failure(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[outcome(1, "preempted", "preempted")])
    assert (here.state(job_id), here.job(job_id)["reason"]["code"]) == ("stopping", "preempted")
    here.tick()
    job = here.job(job_id)
    assert (job["state"], job["pending_reason"]["code"]) == ("queued", "preempted")
    assert (job["reason"], job["failures"]["spent"]) == (None, 0)
    here.tick()
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)]
    assert here.cluster.told == [("release", job_id, 1)]


def test_a_user_who_pauses_a_job_that_is_being_preempted_finds_it_paused(here: Stage) -> None:
    for early in (True, False):
        job_id = here.running(name=f"early-{early}")
        if early:
            pause(here, job_id)
        here.post(job_id, records=[outcome(1, "preempted", "preempted")])
        if not early:
            pause(here, job_id)
        here.tick(3)
        assert here.state(job_id) == "paused"


def test_what_a_supervisor_could_not_post_until_it_was_let_go_is_taken_in(here: Stage) -> None:
    """A job that its user stops because nothing of it arrives any more."""
    for end, told in (("paused", []), ("succeeded", [outcome(1, "succeeded", result=RESULT)])):
        job_id = here.running(name=end)
        pause(here, job_id)
        here.tick()
        here.cluster.left[job_id, 1] = [metric(1, 7, loss=1.0), *told]
        here.rounds(PAUSE_GRACE_S + TEARDOWN_S + 5)
        here.tick()
        points = here.client.get(f"/api/v1/jobs/{job_id}/metrics?name=loss").json()["points"]
        assert (here.state(job_id), [point["step"] for point in points]) == (end, [7])


def test_a_queued_job_is_paused_at_once(here: Stage) -> None:
    job_id = here.submit()
    assert pause(here, job_id) == 202
    here.tick(2)
    assert (here.state(job_id), here.cluster.starts) == ("paused", [])


def test_time_that_a_job_is_paused_does_not_count_as_running(here: Stage) -> None:
    job_id = paused(here, max_runtime_s=100)
    here.time.pass_s(1000)
    resume(here, job_id)
    here.tick()
    here.post(job_id, attempt=2, status=status("running"))
    here.tick(2)
    assert here.state(job_id) == "running"


def test_a_paused_job_is_cancelled_at_once_and_so_is_one_on_its_way(here: Stage) -> None:
    for job_id in (paused(here), here.running(name="other")):
        pause(here, job_id)
        assert here.client.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 202
        here.tick()
        if here.state(job_id) == "stopping":
            here.post(job_id, records=[outcome(1, "cancelled")])
        here.tick(2)
        assert here.state(job_id) == "cancelled"
        assert (pause(here, job_id), resume(here, job_id)) == (409, 409)


def test_a_cancel_that_comes_while_the_pause_is_told_reaches_the_supervisor_too(here: Stage) -> None:
    job_id = here.running()
    pause(here, job_id)

    def meanwhile(where: str) -> None:
        if where == "after pause":
            assert here.client.post(f"/api/v1/jobs/{job_id}/cancel", json={"grace_s": 5}).status_code == 202

    here.cluster.cut = meanwhile
    here.tick(3)
    assert here.cluster.told == [("pause", job_id, 1, PAUSE_GRACE_S), ("cancel", job_id, 1, 5)]


@pytest.mark.parametrize(
    ("told", "code", "state"),
    [
        ("succeeded", "", "succeeded"),
        ("failed", "entrypoint_raised", "failed"),
        ("failed", "min_workers_lost", "paused"),
    ],
)
def test_a_job_that_ends_before_it_could_be_paused_has_its_own_end(
    here: Stage, told: str, code: str, state: str
) -> None:
    job_id = here.running()
    pause(here, job_id)
    here.tick()
    here.post(job_id, records=[outcome(1, told, code) if code else outcome(1, told)])
    here.tick(2)
    assert here.state(job_id) == state


def test_a_supervisor_that_vanishes_or_does_not_end_leaves_the_job_paused(here: Stage) -> None:
    vanished, stuck = here.running(), here.running(name="stuck", workers={"min": 1, "max": 1})
    for job_id in (vanished, stuck):
        pause(here, job_id)
    here.cluster.alive.pop((vanished, 1))
    here.tick(2)
    assert [here.state(vanished), here.state(stuck)] == ["paused", "stopping"]
    here.rounds(PAUSE_GRACE_S + 60)
    assert (here.state(stuck), here.cluster.alive) == ("paused", {})


@pytest.mark.parametrize(
    ("steps", "begins"),
    [
        ([4, 9], ""),
        ([4], "step 4, the newest checkpoint"),
        ([], "step 0, because there is no checkpoint"),
    ],
)
def test_a_job_that_could_not_be_saved_where_it_was_paused_says_from_where_it_goes_on(
    here: Stage, steps: list[int], begins: str
) -> None:
    job_id = here.running()
    pause(here, job_id)
    here.tick()
    told = [saved(job_id, seq, step) for seq, step in enumerate(steps, start=1)]
    here.post(job_id, status=status("running", step=9), records=[*told, outcome(1, "paused")])
    here.tick(2)
    job = here.job(job_id)
    assert job["state"] == "paused"
    said = f"; step 9 was not saved, and resuming continues from {begins}" if begins else ""
    assert job["reason"]["message"] == f"paused by admin{said}"
    *_, last = here.client.get(f"/api/v1/jobs/{job_id}/events").json()["items"]
    assert (last["type"], last["data"]["reason"]) == ("job.paused", job["reason"])


def test_a_job_can_begin_with_the_weights_of_another_ones_newest_checkpoint(here: Stage) -> None:
    first = here.running()
    here.post(first, records=[saved(first, 1, 4)])
    second = here.submit(name="second", init_from=first)
    unknown = "job_" + "0" * 26
    for source, why in ((second, "has neither"), (unknown, "is not the ID of a job")):
        answer = here.client.post(
            "/api/v1/jobs", json={"name": "x", "entrypoint": "a:b", "init_from": source}
        )
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == "/init_from"
        assert why in answer.json()["detail"]


@pytest.mark.parametrize("checkpoints", [[], [4]])
def test_a_job_begins_with_the_final_weights_of_one_that_has_succeeded(
    here: Stage, checkpoints: list[int]
) -> None:
    """Also of one that was too short for a checkpoint."""
    first = here.running()
    weights = here.home / "jobs" / first / "artifacts" / "weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"")
    told = RESULT | {"weights_uri": weights.as_uri()}
    told_of = [saved(first, 1, step) for step in checkpoints]
    here.post(first, records=[*told_of, outcome(2, "succeeded", result=told)])
    here.tick(2)
    second = here.submit(name="second", init_from=first)
    here.tick(2)
    assert here.cluster.alive[second, 1].spec.init_from == str(weights)
    assert here.job(second)["spec"]["init_from"] == str(weights)


@pytest.mark.parametrize("end", [True, False])
def test_a_job_begins_with_the_final_optimizers_of_one_that_has_succeeded_or_is_refused(
    here: Stage, end: bool
) -> None:
    """They are in a checkpoint of its end alone: one of before has other weights."""
    first = here.running()
    weights = here.home / "jobs" / first / "artifacts" / "weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"")
    told_of = [saved(first, 1, 8)]
    uri = place(first, "step-000000000008-a1-g1-end")
    if end:
        told_of += [event(2, "checkpoint.saved", step=8, uri=uri, size_bytes=3, copied_s=0.1, removed=[])]
    result = RESULT | {"weights_uri": weights.as_uri()}
    here.post(first, records=[*told_of, outcome(3, "succeeded", result=result)])
    here.tick(2)
    asked = {"name": "second", "entrypoint": "a:b", "init_from": first, "init_optimizers": True}
    answer = here.client.post("/api/v1/jobs", json=asked)
    if not end:
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/init_optimizers")
        assert "without a checkpoint of its end" in answer.json()["detail"]
        return
    second = answer.json()["id"]
    here.tick(2)
    assert here.cluster.alive[second, 1].spec.init_from == uri


def test_a_job_begins_with_the_checkpoint_that_is_newest_when_it_starts_and_stays_with_it(
    here: Stage,
) -> None:
    """While it waits its source goes on, and keeps few."""
    first = here.running(workers={"min": 4, "max": 4})
    here.post(first, records=[saved(first, 1, 4)])
    second = here.submit(name="second", init_from=first, workers={"min": 4, "max": 4})
    here.tick()
    assert (here.state(second), here.job(second)["spec"]["init_from"]) == ("queued", first)
    here.post(first, records=[saved(first, 2, 8, "step-4"), outcome(3, "succeeded")])
    here.tick(2)
    assert here.cluster.alive[second, 1].spec.init_from == place(first, "step-8")
    assert here.job(second)["spec"]["init_from"] == place(first, "step-8")
    here.client.delete(f"/api/v1/jobs/{first}")
    here.post(second, records=[outcome(1, "failed", "platform_error")])
    here.tick(2)
    assert here.cluster.alive[second, 2].spec.init_from == place(first, "step-8")


def test_a_job_whose_source_is_gone_when_it_starts_says_so(here: Stage) -> None:
    first = here.running()
    here.post(first, records=[saved(first, 1, 4)])
    second = here.submit(name="second", init_from=first)
    pause(here, second)
    here.post(first, records=[outcome(2, "succeeded")])
    here.tick(2)
    assert here.client.delete(f"/api/v1/jobs/{first}").status_code == 204
    resume(here, second)
    here.tick(3)
    job = here.job(second)
    assert (job["state"], job["reason"]["code"]) == ("failed", "checkpoint_unreadable")
    assert f"{first}, whose weights" in job["reason"]["message"]
