"""What the command line says of refusals, of reasons, and of metrics that there are none of."""

import json

import pytest
from fake_api import SUCCEEDED, FakeApi, job_id, problem
from test_cli_jobs import Run, api, job_file, run

__all__ = ["api", "job_file", "run"]


def test_a_refusal_is_a_headline_and_whole_sentences(api: FakeApi, run: Run, job_file: str) -> None:
    told = "'hub' is no secret of project default; allowed: one that has been set there"
    finding = {
        "pointer": "/secrets/TOK",
        "value": "hub",
        "allowed": "one that has been set there",
        "message": told,
    }
    detail, hint = (
        f"the job file is refused: /secrets/TOK: {told}",
        "Set it with `ringleader secret set hub`.",
    )
    api.faults = [problem(422, "spec_invalid", detail, hint=hint, errors=[finding])]
    code, _, err = run("submit", job_file)
    assert code == 2
    assert err.splitlines() == [
        "error (spec_invalid): the job file is refused:",
        f"  secrets.TOK: {told}",
        f"  → {hint}",
    ]


def test_what_is_allowed_is_told_where_the_message_does_not(api: FakeApi, run: Run, job_file: str) -> None:
    finding = {"pointer": "/workers/min", "value": 99, "allowed": "at most 4", "message": "99 is too many"}
    api.faults = [problem(422, "invalid", "the body is wrong: min", errors=[finding])]
    assert "  workers.min: 99 is too many; allowed: at most 4\n" in run("submit", job_file)[2]


@pytest.mark.parametrize(
    ("state", "says"),
    [("paused", "paused because"), ("stopping", "stopping because"), ("cancelled", "ended because")],
)
def test_a_job_that_is_paused_has_not_ended(api: FakeApi, run: Run, state: str, says: str) -> None:
    reason = {"code": "paused", "message": "paused by admin", "hint": ""}
    api.jobs[0] |= {"state": state, "reason": reason}
    because = [line for line in run("describe", "digits-1")[1].splitlines() if "paused by admin" in line]
    assert [line.rpartition("  ")[0].strip() for line in because] == [says]


def test_a_metric_that_an_ended_job_never_logged_is_refused_with_those_there_are(
    api: FakeApi, run: Run
) -> None:
    api.jobs[0] |= SUCCEEDED
    api.points |= {"loss": [], "accuracy": []}
    code, out, err = run("metrics", "digits-1", "nosuch")
    assert (code, out) == (1, "")
    assert err == (
        f"error (metric_not_found): job {job_id(1)} has no metric 'nosuch'.\n  → Its metrics are accuracy, loss.\n"
    )
    assert json.loads(run("metrics", "digits-1", "nosuch", "-o", "json")[2])["code"] == "metric_not_found"
    api.points.clear()
    assert "It logged no metrics." in run("metrics", "digits-1", "loss")[2]


def test_a_metric_of_a_job_at_work_may_still_come(api: FakeApi, run: Run) -> None:
    api.jobs[0] |= {"state": "running"}
    assert run("metrics", "digits-1", "nosuch")[:2] == (0, "no points of 'nosuch' yet\n")
