"""How often somebody may ask, and guess: each by itself, and nobody is held up by others."""

from pathlib import Path

import pytest
from control_plane import Stage, no_pause, stage
from test_api_guard import stranger

from ringleader_api.edge.rate import Allowance


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_an_allowance_refills_and_is_each_ones_own() -> None:
    now = 0.0
    allowance = Allowance(per_s=2, burst=3, now_s=lambda: now)
    assert [allowance.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert allowance.take("b") == 0
    now = 0.5
    assert [allowance.take("a"), allowance.take("a")] == [0, 0.5]
    now = 60
    assert [allowance.take("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_who_asks_too_often_waits_and_holds_up_nobody_else(tmp_path: Path) -> None:
    here = stage(tmp_path, requests_per_s=0.001)  # twice that at once is less than one
    answer = here.client.get("/api/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert answer.headers["retry-after"] == "998"
    assert stranger(here).get("/healthz").status_code == 200


@pytest.mark.usefixtures("no_refill")
def test_guesses_at_tokens_are_slowed_and_the_right_token_is_not(tmp_path: Path) -> None:
    here = stage(tmp_path, pause=no_pause)
    client = stranger(here)
    guesses = [client.post("/api/v1/login", json={"token": "x"}).status_code for _ in range(25)]
    assert guesses == [401] * 20 + [429] * 5
    right = {"token": (here.home / "token").read_text()}
    assert [stranger(here).post("/api/v1/login", json=right).status_code for _ in range(3)] == [204] * 3
    wrong = {"Authorization": "Bearer x"}
    seen = [client.get("/api/v1/me", headers=wrong).status_code for _ in range(40)]
    assert seen == [401] * 30 + [429] * 10
    assert here.client.get("/api/v1/me").status_code == 200


@pytest.mark.usefixtures("no_refill")
def test_each_replica_counts_for_itself(tmp_path: Path) -> None:
    here = stage(tmp_path, requests_per_s=0.5)  # one at once
    other = stage(tmp_path, here.cluster, requests_per_s=0.5)
    answers = [one.client.get("/api/v1/jobs").status_code for one in (here, here, other, other)]
    assert answers == [200, 429, 200, 429]
