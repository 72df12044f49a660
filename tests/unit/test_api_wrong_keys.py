"""What only the server finds wrong in a job file is a whole sentence: the value, what is allowed, what to do."""

from pathlib import Path
from typing import Any

import pytest
from control_plane import SPEC, Stage, stage

UNKNOWN = "job_" + "0" * 26


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def refused(here: Stage, **changes: Any) -> dict[str, Any]:
    answer = here.client.post("/api/v1/jobs", json={**SPEC, **changes})
    assert answer.status_code == 422
    return dict(answer.json())


def test_a_beginning_that_is_no_job(here: Stage) -> None:
    problem = refused(here, init_from=UNKNOWN)
    told = (
        f"{UNKNOWN!r} is not the ID of a job that you can read; allowed: the ID of a job that you can read, or the "
        "URI of a checkpoint"
    )
    assert [finding["message"] for finding in problem["errors"]] == [told]
    assert problem["detail"] == f"the job file is refused: /init_from: {told}"
    assert "`ringleader jobs`" in problem["hint"]


def test_a_beginning_that_has_nothing_yet(here: Stage) -> None:
    first = here.running()
    problem = refused(here, init_from=first)
    assert f"{first!r} has neither succeeded nor saved" in problem["errors"][0]["message"]
    assert problem["hint"] == "Submit again once it has, or start from another job."


def test_a_secret_that_is_not_set(here: Stage) -> None:
    problem = refused(here, secrets={"TOK": "hub"})
    (finding,) = problem["errors"]
    assert finding["pointer"] == "/secrets/TOK"
    assert (
        finding["message"]
        == "'hub' is not a secret of project default; allowed: the name of a secret of this project"
    )
    assert "`ringleader secret set hub --project default`" in problem["hint"]


@pytest.mark.parametrize("given", ["sha256:" + "0" * 64, "code"])
def test_a_package_that_is_not_uploaded(here: Stage, given: str) -> None:
    problem = refused(here, working_dir=given)
    assert problem["errors"][0]["message"].startswith(f"{given!r} ")
    assert "`ringleader submit`" in problem["hint"]


def test_the_hint_for_other_wrong_keys_names_nothing_that_is_not_shown(here: Stage) -> None:
    problem = refused(here, wrokers={})
    assert (
        problem["hint"]
        == "Correct the keys listed in `errors`, which says what is allowed for each, and submit again."
    )
