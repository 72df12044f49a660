"""The page of one job in a real browser: charts, a stretch that is read again, what a screen reader is given."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from axe import serious
from control_plane import SPEC, FakeCluster, event, line, metric, status
from playwright.sync_api import sync_playwright
from served import FLAGS, served
from waiting import wait_for

pytestmark = pytest.mark.timeout(420)  # a machine that does much else
STEPS = 1500
SPIKE = 877
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLOTS = '[data-testid="plot"][data-drawn="1"]'


def told() -> list[dict[str, Any]]:
    """Records of a run that loses a worker, with one step whose loss is high."""
    happened: list[tuple[int, str, dict[str, Any]]] = [
        (0, "generation.formed", {"members": ["w0", "w1"], "cause": "start", "step": 0, "world": 2}),
        (0, "worker.joined", {"worker": "w0", "rank": 0, "step": 0}),
        (0, "worker.joined", {"worker": "w1", "rank": 1, "step": 0}),
        (400, "worker.lost", {"worker": "w1", "rank": 1, "cause": "died (SIGKILL)", "step": 400}),
        (401, "generation.formed", {"members": ["w0"], "cause": "lost", "step": 400, "world": 1}),
        (405, "recovered", {"detect_s": 3.0, "redo_s": 1.0, "total_s": 4.0, "steps_lost": 0, "step": 401}),
    ]
    records = [at(seconds, event(seq, kind, **data)) for seq, (seconds, kind, data) in enumerate(happened, 1)]
    for step in range(1, STEPS + 1):
        values = {
            "loss": 90.0 if step == SPIKE else 2.0 - step / STEPS,
            "samples_per_s": 8.0,
            "world_size": 2.0,
            "comm_exposed_fraction": 0.25,
            "exchange_fraction": 0.125,
            "idle_fraction": 0.125,
            "loading_fraction": 0.25,
        }
        records.append(at(step, metric(len(records) + 1, step, **values)))
    for words in ("Boom", "after it"):
        records.append({**line(len(records) + 1, words), "level": "error" if words == "Boom" else "info"})
    return records


def at(seconds: float, record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "at": (START + timedelta(seconds=seconds)).isoformat()}


def test_charts_of_a_job_show_each_spike_and_ask_again_for_a_stretch(
    tmp_path: Path, browser_path: str
) -> None:
    home, cluster = tmp_path / "home", FakeCluster()
    with served(home, cluster) as url, sync_playwright() as playwright:
        token = (home / "token").read_text()
        api = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"})
        with closing(playwright.chromium.launch(executable_path=browser_path, args=FLAGS)) as browser, api:
            job_id = api.post("/jobs", json=SPEC).raise_for_status().json()["id"]
            launch = wait_for("start", lambda: cluster.alive.get((job_id, 1)))
            records = told()
            for first in range(0, len(records), 500):
                body = {
                    "attempt": 1,
                    "status": status("running", STEPS),
                    "records": records[first : first + 500],
                }
                bearer = {"Authorization": f"Bearer {launch.ingest_token}"}
                api.post(f"/jobs/{job_id}/ingest", json=body, headers=bearer).raise_for_status()
            page = browser.new_page()
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.goto(url)
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            page.goto(f"{url}/jobs/{job_id}")
            wait_for("charts", lambda: page.locator(PLOTS).count() == 3)
            lost = page.get_by_role("img", name="Worker w1 lost at step 400: died (SIGKILL)")
            assert lost.get_attribute("data-step") == "400"
            shares = page.get_by_role("region", name="Where the time goes")
            with page.expect_download() as values:
                shares.get_by_role("button", name="CSV").click()
            head, first, *_ = Path(values.value.path()).read_text().splitlines()
            assert head == 'Steps,Time,Computing,Loading,Communication,"Idle, waiting for others",Recovery'
            assert first.split(",")[2:] == ["50.0 %", "25.0 %", "12.5 %", "12.5 %", "0.0 %"]
            loss = page.locator(f'{PLOTS}[data-name="Loss"]')
            whole = int(loss.get_attribute("data-points") or 0)
            assert whole < STEPS  # thinned
            loss.focus()
            page.keyboard.press("Home")
            page.locator("[aria-live]", has_text="Step 1:").wait_for(state="attached")
            box = loss.bounding_box()
            assert box is not None
            with page.expect_response(lambda answer: "from=" in answer.url and "to=" in answer.url) as again:
                page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + 40)
                page.mouse.down()
                page.mouse.move(box["x"] + 0.65 * box["width"], box["y"] + 60, steps=4)
                page.mouse.up()
            low, high = (float(parse_qs(urlsplit(again.value.url).query)[key][0]) for key in ("from", "to"))
            assert low < SPIKE < high
            steps = next(c["steps"] for c in again.value.json()["curves"] if c["name"] == "loss")
            assert steps == list(range(steps[0], steps[-1] + 1))  # every step of it
            page.get_by_role("button", name="Show all").click()
            page.wait_for_url(lambda now: "from=" not in now)
            page.get_by_role("button", name="Options of Loss").click()
            page.get_by_label("Log scale").check()
            page.get_by_role("button", name="Move down").click()
            page.wait_for_url("**names=samples_per_s,loss,world_size*")
            page.keyboard.press("Escape")
            page.get_by_role("button", name="First error").click()
            page.locator(".log-here", has_text="Boom").wait_for()
            page.get_by_label("Search").fill("boom")
            page.locator("mark", has_text="Boom").wait_for()
            assert page.locator(".log-line").count() == 1
            with page.expect_download() as lines:
                page.get_by_role("button", name="Download").click()
            assert [line.split()[1:3] for line in Path(lines.value.path()).read_text().splitlines()] == [
                ["w0", "error"]
            ]
            assert faults == []
            assert serious(page) == []
