"""A sweep in a real browser: its best score drawn, its rungs in true words, and why a trial has failed."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import serious
from browsed import Browsed, browsed
from control_plane import SPEC, metric, outcome
from waiting import wait_for

pytestmark = pytest.mark.timeout(420)  # a machine that does much else
SWEEP: dict[str, Any] = {
    "name": "lr",
    "template": {"entrypoint": SPEC["entrypoint"], "workers": {"min": 1, "max": 1}},
    "space": {"params.lr": {"values": [0.1, 0.2, 0.3]}},
    "method": "grid",
    "metric": {"name": "loss"},
    "parallel": 3,
    "promotion": {"asha": {"rungs": [10, 90000], "reduction": 3}},
}
COLOURED = """() => [...document.querySelectorAll('[data-testid="plot"] canvas')].some((canvas) => {
  const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  for (let at = 0; at < all.length; at += 4)
    if (all[at + 3] > 200 && all[at + 2] - all[at] > 120) return true;
  return false;
})"""
"""Whether anything of a plot is drawn in the blue of the first run."""


@pytest.fixture
def here(tmp_path: Path, browser_path: str) -> Iterator[Browsed]:
    with browsed(tmp_path / "home", browser_path) as seen:
        yield seen
        assert seen.faults == []


class Trials:
    """The trials of a sweep, and what their supervisors post."""

    def __init__(self, here: Browsed, sweep_id: str) -> None:
        self.here, self.sweep_id = here, sweep_id
        self._seq = itertools.count(1)

    def job(self, number: int) -> str:
        return str(self._one(number)["job"])

    def tell(self, number: int, *records: dict[str, Any], **more: Any) -> None:
        job_id = wait_for("job of the trial", lambda: self._one(number)["job"])
        self.here.tell(wait_for("start", lambda: self.here.cluster.alive.get((job_id, 1))), *records, **more)

    def reach(self, number: int, step: int, loss: float) -> None:
        self.tell(number, metric(next(self._seq), step, loss=loss), step=step)

    def end(self, number: int, how: str, code: str = "") -> None:
        self.tell(number, outcome(next(self._seq), how, code))
        wait_for("end of the trial", lambda: self._one(number)["state"] == how)

    def _one(self, number: int) -> dict[str, Any]:
        answer = self.here.api.get(f"/sweeps/{self.sweep_id}/trials").raise_for_status()
        return dict(answer.json()["items"][number])


def made(here: Browsed) -> Trials:
    return Trials(here, here.api.post("/sweeps", json=SWEEP).raise_for_status().json()["id"])


def test_the_best_score_is_drawn_also_where_no_other_chart_was_opened_before(here: Browsed) -> None:
    trials = made(here)
    trials.reach(0, 10, 0.5)
    here.page.goto(f"{here.url}/sweeps/{trials.sweep_id}")
    here.page.get_by_test_id("plot").first.wait_for()
    here.page.wait_for_function(COLOURED)
    assert serious(here.page) == []


def test_why_a_trial_failed_stands_in_the_leaderboard_and_in_the_reason_of_the_sweep(here: Browsed) -> None:
    trials = made(here)
    for number in range(3):
        trials.end(number, "failed", code=f"fault-{number}")
    here.page.goto(f"{here.url}/sweeps/{trials.sweep_id}")
    row = here.page.get_by_test_id("leaderboard").locator('[data-trial="1"]')
    row.get_by_text("Because of fault-1").wait_for()
    here.page.get_by_text("trial 0 failed: because of fault-0").wait_for()


def test_at_the_width_of_a_phone_each_trial_is_a_card_and_is_sorted_by_what_it_says(here: Browsed) -> None:
    trials = made(here)
    for number, loss in enumerate((0.5, 0.9, 0.7)):
        trials.reach(number, 5, loss)
    here.page.set_viewport_size({"width": 360, "height": 740})
    here.page.goto(f"{here.url}/sweeps/{trials.sweep_id}")
    board = here.page.get_by_test_id("leaderboard")
    board.locator('[data-trial="2"] [data-said="params.lr"]', has_text="0.3").wait_for()
    wide = "it => it.scrollWidth > it.clientWidth"
    assert not board.locator("..").evaluate(wide)
    board.get_by_role("link", name="params.lr").click()
    here.page.wait_for_url("**sort=params.lr")

    def shown() -> list[str | None]:
        return [row.get_attribute("data-trial") for row in board.locator("[data-trial]").all()]

    wait_for("order", lambda: shown() == ["0", "1", "2"])
    assert serious(here.page) == []
    here.page.goto(f"{here.url}/sweeps")
    here.page.get_by_role("link", name="lr", exact=True).wait_for()
    assert here.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert serious(here.page) == []


def test_a_sweep_links_to_its_own_trials_also_where_another_has_its_name(here: Browsed) -> None:
    sweeps = [made(here), made(here)]
    wait_for(
        "jobs of both", lambda: all(trials.job(number) != "None" for trials in sweeps for number in range(3))
    )
    here.page.goto(f"{here.url}/sweeps/{sweeps[0].sweep_id}")
    here.page.get_by_role("link", name="List the trials").click()
    here.page.wait_for_url(f"**/jobs?label=sweep_id={sweeps[0].sweep_id}")
    rows = here.page.locator("tr[data-job]")
    wait_for("three jobs", lambda: rows.count() == 3)
    assert {row.get_attribute("data-job") for row in rows.all()} == {
        sweeps[0].job(number) for number in range(3)
    }


def test_a_trial_that_ended_before_a_rung_has_not_reached_it(here: Browsed) -> None:
    trials = made(here)
    for number in (1, 2):
        trials.reach(number, 10, 0.9)
    trials.reach(0, 10, 0.5)
    trials.reach(0, 24, 0.4)
    trials.end(0, "succeeded")
    here.page.goto(f"{here.url}/sweeps/{trials.sweep_id}")
    far = here.page.get_by_test_id("rungs").get_by_role("row", name="90,000")
    far.get_by_text("0, 1 ended before").wait_for()
