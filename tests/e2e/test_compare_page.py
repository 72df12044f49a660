"""Runs compared in a real browser: a shared link, the cursor by keys, a zoom, and what a screen reader is given."""

from pathlib import Path

import pytest
from axe import serious
from sqlalchemy import select

from ringleader.bench.control_plane.crowd import plane
from ringleader.bench.control_plane.history import fill
from ringleader.bench.page.browser import logged_in
from ringleader.bench.page.page import store_curves
from ringleader_api.store import Store
from ringleader_api.store.tables import Job

pytestmark = pytest.mark.timeout(420)  # a machine that does much else
MARKUP = "<img src=x onerror=alert(1)>"
DRAWN = """(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"""


def filled(home: Path) -> list[str]:
    """A home with three jobs of 40 steps, the first with a name that is markup. Returns their ids."""
    fill(home, 3)
    store_curves(home, 40)
    store = Store.at(home)
    with store.write() as session:
        jobs = session.scalars(select(Job).order_by(Job.id)).all()
        jobs[0].name = MARKUP
        jobs[1].spec = {**jobs[1].spec, "params": {"lr": 0.5}}
        ids = [job.id for job in jobs]
    store.close()
    return ids


def test_a_shared_link_shows_its_runs_and_says_what_it_leaves_out(tmp_path: Path, browser_path: str) -> None:
    home = tmp_path / "home"
    ids = filled(home)
    with plane(home, cpus=1) as server, logged_in(server) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{server.url}/compare?jobs={','.join(ids)},job_gone&names=loss,nothing&baseline={ids[0]}")
        page.locator('[data-testid="plot"][data-drawn="3"]').wait_for()
        left_out = page.get_by_test_id("left-out").inner_text()
        assert "job_gone" in left_out
        assert "nothing" in left_out
        page.get_by_test_id("differences").get_by_text("params.lr").wait_for()
        row = page.locator(f'[data-testid="finals"] tr[data-job="{ids[0]}"]')
        assert MARKUP in row.inner_text()
        for name in ("Parallel coordinates", "Scatter"):
            assert page.get_by_role("img", name=name).evaluate(DRAWN), name
        page.get_by_test_id("plot").focus()
        page.keyboard.press("Home")
        assert "Step 1" in page.get_by_test_id("plot-values").inner_text()
        page.locator("[aria-live]", has_text="Step 1:").wait_for(state="attached")
        page.keyboard.press("+")
        page.wait_for_url("**from=*")
        page.get_by_role("button", name="Show all").click()
        page.wait_for_url(lambda url: "from=" not in url)
        page.get_by_role("link", name="Report").wait_for()
        assert serious(page) == []
        page.goto(f"{server.url}/compare?jobs=job_gone&names=loss")
        page.get_by_test_id("left-out").wait_for()
        assert page.get_by_role("link", name="Report").count() == 0
        assert serious(page) == []
        page.goto(f"{server.url}/compare")
        page.get_by_role("button", name="Compare").first.wait_for()
        assert errors == []
        assert serious(page) == []


def test_at_the_width_of_a_phone_runs_and_keys_of_job_files_are_cards(
    tmp_path: Path, browser_path: str
) -> None:
    home = tmp_path / "home"
    ids = filled(home)
    with plane(home, cpus=1) as server, logged_in(server) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        page.goto(f"{server.url}/compare?jobs={','.join(ids)}&names=loss&baseline={ids[0]}")
        key = page.get_by_test_id("differences").get_by_role("row").filter(has_text="params.lr")
        key.wait_for()
        said = "cells => cells.map((cell) => [cell.dataset.said, cell.innerText])"
        assert key.locator("td").evaluate_all(said) == [[MARKUP, "1"], ["n1", "0.5"], ["n2", "0.01"]]
        run = page.locator(f'[data-testid="finals"] tr[data-job="{ids[1]}"]')
        heads = ["Baseline", "State", "loss", "Steps", "Recoveries", "Time"]
        assert [name for name, _ in run.locator("td").evaluate_all(said)] == heads
        for name in ("finals", "differences"):
            box = page.get_by_test_id(name).locator("..")
            assert box.evaluate("box => box.scrollWidth <= box.clientWidth"), name
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert serious(page) == []


def test_a_link_to_a_job_says_what_its_page_leaves_out(tmp_path: Path, browser_path: str) -> None:
    home = tmp_path / "home"
    ids = filled(home)
    with plane(home, cpus=1) as server, logged_in(server) as page:
        page.goto(f"{server.url}/jobs/{ids[0]}?foo=1&chart=nonsense&axis=rows")
        left_out = page.get_by_test_id("left-out")
        left_out.get_by_text("no page of a run has it: foo=1, chart=nonsense.").wait_for()
        assert serious(page) == []
        page.goto(f"{server.url}/jobs/{ids[0]}?axis=rows")
        page.get_by_role("heading", name="Logs").wait_for()
        assert left_out.count() == 0
