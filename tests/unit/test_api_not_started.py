"""What keeps an attempt from starting is told to who waits for it, and costs the others and the log next to nothing."""

import logging
from itertools import pairwise
from pathlib import Path

import pytest
from control_plane import Stage, stage
from cryptography.fernet import Fernet
from test_api_packages import ADDRESS, DATA, NAME

from ringleader_api.reconciling.starter import MOST_ROUNDS
from ringleader_api.services import packages

ROUNDS = 3 * MOST_ROUNDS


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    here = stage(tmp_path, start_timeout_s=60.0)
    assert here.client.put(ADDRESS, content=DATA).status_code == 201
    return here


def file_of_package(here: Stage) -> Path:
    return packages.file_of(here.home, NAME.removeprefix("sha256:"))


def test_a_job_whose_package_is_gone_says_so_and_starts_once_it_is_sent_again(here: Stage) -> None:
    job_id = here.submit(working_dir=NAME)
    file_of_package(here).unlink()
    here.tick()
    job = here.job(job_id)
    assert (job["state"], job["pending_reason"]["code"]) == ("starting", "package_lost")
    assert str(file_of_package(here)) in job["pending_reason"]["message"]
    assert here.client.head(ADDRESS).status_code == 404, "who submits again sends it again"
    assert here.client.put(ADDRESS, content=DATA).status_code in (200, 201)
    here.tick(MOST_ROUNDS)
    assert here.cluster.starts == [(job_id, 1)]
    assert here.job(job_id)["pending_reason"] is None


def test_a_job_whose_secret_another_key_has_sealed_names_the_secret_and_no_value(here: Stage) -> None:
    here.client.put("/api/v1/secrets/default/hub", json={"value": "5ecretV4lue"})
    (here.home / "secrets.key").write_bytes(Fernet.generate_key())
    job_id = here.submit(secrets={"HF_TOKEN": "hub"})
    here.tick()
    told = here.job(job_id)["pending_reason"]
    assert told["code"] == "secrets_key_other"
    assert "'hub' of project 'default'" in told["message"]
    assert "5ecret" not in str(told)


def test_an_attempt_that_does_not_start_is_tried_in_ever_fewer_rounds_and_told_once(
    here: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(where: str) -> None:
        if where == "before start":
            tries.append(rounds[0])
            raise ConnectionError("the head is busy")

    tries: list[int] = []
    rounds = [0]
    here.cluster.cut = refuse
    job_id = here.submit()
    with caplog.at_level(logging.WARNING):
        for rounds[0] in range(ROUNDS):
            here.tick()
    assert tries[:2] == [0, 1], "at first at once"
    pauses = [later - before for before, later in pairwise(tries)]
    assert pauses == sorted(pauses)
    assert max(pauses) == MOST_ROUNDS
    assert len(tries) < 15
    assert sum(bool(told.exc_info) for told in caplog.records) == 1, "one traceback, not one each round"
    assert here.job(job_id)["pending_reason"]["message"].endswith("(ConnectionError: the head is busy)")


def test_one_that_does_not_start_holds_up_no_other(here: Stage) -> None:
    stuck = here.submit(working_dir=NAME, workers={"min": 1, "max": 1})
    file_of_package(here).unlink()
    other = here.submit(workers={"min": 1, "max": 1})
    here.tick()
    assert here.cluster.starts == [(other, 1)]
    assert here.state(stuck) == "starting"


def test_an_attempt_that_is_given_up_says_what_kept_it_from_starting(here: Stage) -> None:
    job_id = here.submit(working_dir=NAME, max_failures=0)
    file_of_package(here).unlink()
    here.tick()
    for _ in range(16):
        here.time.pass_s(5)
        here.tick()
    job = here.job(job_id)
    assert job["state"] == "failed"
    assert "did not start training within 60 s: the job's package is missing" in job["reason"]["message"]
    assert "Submit from the same folder again" in job["reason"]["hint"]


def test_what_a_cancelled_job_was_told_keeps_it_from_nothing(here: Stage) -> None:
    job_id = here.submit(working_dir=NAME)
    file_of_package(here).unlink()
    here.tick()
    here.client.post(f"/api/v1/jobs/{job_id}/cancel")
    here.tick(2)
    assert (here.state(job_id), here.job(job_id)["pending_reason"]) == ("cancelled", None)
