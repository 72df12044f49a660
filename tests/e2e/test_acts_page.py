"""What one does to a job on its page in a real browser: its priority, faults on purpose, a retry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import serious
from browsed import Browsed, browsed
from control_plane import outcome
from waiting import wait_for

pytestmark = pytest.mark.timeout(420)  # a machine that does much else
MEMBERS = [("w0", "worker"), ("w1", "worker"), ("s0", "server")]


@pytest.fixture
def here(browser_path: str, tmp_path: Path) -> Iterator[Browsed]:
    with browsed(tmp_path / "home", browser_path) as here:
        yield here
        assert here.faults == []


def member(place: int, name: str, role: str) -> dict[str, Any]:
    about = {"role": role, "rank": place, "pid": place + 7, "node": "n1"}
    return {"id": name, **about, "state": "active", "generation": 1, "shards": [place, place + 1]}


def test_the_priority_of_a_job_is_changed_and_a_refusal_is_shown(here: Browsed) -> None:
    launch, page = here.started(), here.page
    here.tell(launch)
    page.goto(f"{here.url}/jobs/{launch.job_id}")
    page.get_by_role("button", name="Priority…").click()
    number = page.get_by_label("Priority", exact=True)
    assert number.input_value() == "0"
    number.fill("1.5")
    page.get_by_text("It must be a whole number").wait_for()
    assert page.get_by_role("button", name="Set the priority").is_disabled()
    number.fill("7")
    assert serious(page) == []
    page.get_by_role("button", name="Set the priority").click()
    page.get_by_text("priority 7", exact=True).wait_for()
    assert here.api.get(f"/jobs/{launch.job_id}").json()["spec"]["priority"] == 7
    # It ends while the question is open: the API refuses, and says why.
    page.get_by_role("button", name="Priority…").click()
    number.fill("8")
    here.tell(launch, outcome(1, "failed", "user_code"))
    wait_for("its end", lambda: here.state(launch.job_id) == "failed")
    page.get_by_role("button", name="Set the priority").click()
    page.get_by_role("dialog").get_by_role("alert").wait_for()


def test_a_fault_is_injected_where_the_job_file_allows_it_and_refused_otherwise(here: Browsed) -> None:
    page = here.page
    members = [member(place, *one) for place, one in enumerate(MEMBERS)]
    for allowed in (True, False):
        launch = here.started(debug={"faults": allowed}, workers={"min": 1, "max": 2})
        here.tell(launch, workers=members)
        page.goto(f"{here.url}/jobs/{launch.job_id}")
        page.get_by_role("button", name="Inject a fault…").click()
        fault = page.get_by_role("combobox", name="Fault")
        fault.select_option("Kill a server")
        assert page.get_by_role("combobox", name="Member").locator("option").all_inner_texts() == ["s0 on n1"]
        fault.select_option("Slow a worker down")
        page.get_by_role("combobox", name="Member").select_option("w1 on n1")
        page.get_by_label("Seconds").fill("0")
        assert page.get_by_role("button", name="Slow w1").is_disabled()
        page.get_by_label("Seconds").fill("4")
        page.get_by_role("button", name="Slow w1").click()
        if allowed:
            page.get_by_role("dialog").get_by_text("slow to process 7").wait_for()
            assert ("fault", launch.job_id, 1, "slow", "w1", 4.0) in here.cluster.told
            page.get_by_role("button", name="Close").click()
        else:
            page.get_by_text("does not allow fault injection").wait_for()
            assert not [one for one in here.cluster.told if one[:2] == ("fault", launch.job_id)]
        assert serious(page) == []


def test_who_may_not_inject_faults_is_not_offered_any(here: Browsed) -> None:
    launch, page = here.started(debug={"faults": True}), here.page
    here.tell(launch)
    page.goto(f"{here.url}/jobs/{launch.job_id}")
    page.get_by_role("button", name="Inject a fault…").wait_for()
    here.api.post("/users", json={"name": "ada", "roles": {"default": "submitter"}}).raise_for_status()
    made = here.api.post("/tokens", json={"user": "ada", "name": "page"}).raise_for_status().json()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").fill(made["token"])
    with page.expect_response("**/api/v1/me"):
        page.get_by_role("button", name="Log in").click()
        page.goto(f"{here.url}/jobs/{launch.job_id}")
    page.get_by_role("button", name="Priority…").wait_for()
    assert page.get_by_role("button", name="Inject a fault…").count() == 0


def test_a_job_that_has_failed_is_submitted_again_once(here: Browsed) -> None:
    launch, page = here.started(params={"lr": 0.5}), here.page
    here.tell(launch, outcome(1, "failed", "user_code"))
    wait_for("its end", lambda: here.state(launch.job_id) == "failed")
    page.goto(f"{here.url}/jobs/{launch.job_id}")
    page.get_by_role("button", name="Retry…").click()
    assert serious(page) == []
    page.get_by_role("button", name="Submit it again").click()
    page.wait_for_url(lambda now: launch.job_id not in now)
    jobs = here.api.get("/jobs").json()["items"]
    assert len(jobs) == 2
    assert jobs[0]["id"] in page.url
    assert jobs[0]["spec"] == jobs[1]["spec"]


def test_a_job_that_has_ended_is_deleted_from_its_page(here: Browsed) -> None:
    launch, page = here.started(), here.page
    here.tell(launch)
    page.goto(f"{here.url}/jobs/{launch.job_id}")
    page.get_by_role("button", name="Cancel…").wait_for()
    assert page.get_by_role("button", name="Delete…").count() == 0
    here.tell(launch, outcome(1, "failed", "user_code"))
    page.get_by_role("button", name="Delete…").click()
    assert serious(page) == []
    page.get_by_role("button", name="Delete the job").click()
    page.wait_for_url("**/jobs")
    assert here.api.get(f"/jobs/{launch.job_id}").status_code == 404
    page.get_by_text("No jobs yet").wait_for()
