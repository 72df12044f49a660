"""What a job's workers and nodes use, on its page in a real browser: charts that follow, gaps, files, dark, narrow."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe import serious
from browsed import browsed
from control_plane import event, status
from playwright.sync_api import Page, ViewportSize
from waiting import wait_for

WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=360, height=740)
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
NODES = {"n1": ("w0", "w1"), "n2": ("w2", "w3")}
GAP = range(60, 72)
SAMPLES = 120


@dataclass
class Shown:
    """A page that is logged in, its job, and who posts for that."""

    page: Page
    url: str
    job_id: str
    ingest: httpx.Client

    def post(self, **body: Any) -> None:
        self.ingest.post("ingest", json={"attempt": 1, **body}).raise_for_status()

    def plot(self, name: str) -> Any:
        return self.page.locator(f'[data-testid="plot"][data-name="{name}"]')


def sample(number: int) -> dict[str, Any]:
    """Workers whose load goes up and down, one after the other; the second node tells of no disk."""
    uses: list[dict[str, Any]] = []
    for place, (node, workers) in enumerate(NODES.items()):
        disk = (
            {"disk_read_bytes_per_s": 2e6, "disk_written_bytes_per_s": 4e5 * (number % 7)}
            if not place
            else {}
        )
        figures = {"cpu_percent": 60.0 + 10 * place, "memory_bytes": 9e9, "memory_total_bytes": 16e9, **disk}
        uses.append({"kind": "node", "id": node, "node": node, "figures": figures})
        for at, worker in enumerate(workers):
            cpu = 95 - 8 * (2 * place + at) + 4 * math.sin(number / 9 + place)
            own = {"cpu_percent": round(cpu, 1), "memory_bytes": 1.1e9 + 2e8 * at + 1e6 * number}
            own["step_s"] = 0.12 if worker == "w3" and number > SAMPLES // 2 else 0.04
            uses.append({"kind": "worker", "id": worker, "node": node, "figures": own})
    return {"at": (START + timedelta(seconds=5 * number)).isoformat(), "span_s": 5.0, "uses": uses}


@pytest.fixture
def shown(browser_path: str, tmp_path: Path) -> Iterator[Shown]:
    with browsed(tmp_path, browser_path) as seen:
        launch = seen.started(workers={"min": 4, "max": 4})
        bearer = {"Authorization": f"Bearer {launch.ingest_token}"}
        with httpx.Client(base_url=f"{seen.api.base_url}jobs/{launch.job_id}", headers=bearer) as ingest:
            yield Shown(seen.page, seen.url, launch.job_id, ingest)
        assert seen.faults == []


def fill(shown: Shown) -> None:
    members = [
        {"id": worker, "role": "worker", "rank": rank, "pid": rank + 1, "node": node, "state": "active"}
        | {"generation": 1, "shards": [rank, rank + 1], "cpu_percent": 91.4, "memory_bytes": 1_200_000_000}
        | {"address": f"10.0.0.{node[1:]}"}
        for rank, (node, worker) in enumerate((node, w) for node, workers in NODES.items() for w in workers)
    ]
    joined = [
        event(n + 1, "worker.joined", worker=one["id"], rank=n, step=0) for n, one in enumerate(members)
    ]
    told = [{**one, "at": START.isoformat()} for one in joined]
    numbers = [n for n in range(SAMPLES) if n not in GAP]
    shown.post(status=status("running", workers=members), records=told, system=[sample(n) for n in numbers])


def test_what_workers_and_nodes_use_is_drawn_follows_and_is_kept_as_a_file(
    shown: Shown, tmp_path: Path
) -> None:
    page = shown.page
    shown.post(status=status("running"))
    page.goto(f"{shown.url}/jobs/{shown.job_id}")
    page.get_by_text("Nothing was measured yet").wait_for()
    fill(shown)
    cpu = shown.plot("CPU of workers")
    wait_for("four lines", lambda: cpu.get_attribute("data-lines", timeout=30_000) == "4", 60)
    section = page.get_by_role("region", name="CPU of workers")
    assert section.get_by_role("listitem").all_inner_texts()[0].startswith("w0")
    before = int(cpu.get_attribute("data-points") or 0)
    assert before == 4 * (SAMPLES - len(GAP) + 1), "a place in each line where it is broken"
    assert page.get_by_text("Where a line is broken nothing was measured.").is_visible()
    assert page.get_by_text("GPUs of nodes, GPU memory of nodes (no GPU that NVML knows)").is_visible()
    assert page.get_by_text("Disk of 10.0.0.2").is_visible()
    assert not shown.plot("Disk of nodes").is_visible(), "closed at first"
    page.get_by_text("Nodes", exact=True).click()
    shown.plot("Disk of nodes").wait_for()
    shown.post(system=[sample(SAMPLES)])
    wait_for("the next sample", lambda: int(cpu.get_attribute("data-points") or 0) == before + 4, 60)
    with page.expect_download() as saved:
        page.get_by_role("button", name="CPU of workers as CSV").click()
    rows = list(csv.reader(Path(saved.value.path()).read_text().splitlines()))
    assert rows[0] == ["time (Unix seconds)", "w0", "w1", "w2", "w3"]
    assert len(rows) == 1 + SAMPLES - len(GAP) + 1 + 1
    with page.expect_download() as picture:
        page.get_by_role("button", name="Memory of workers as PNG").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    row = page.locator('[data-testid="workers"] [data-worker="w0"]')
    assert "91 %" in row.inner_text()
    assert "1.2 GB" in row.inner_text()
    assert row.get_by_title("n1").inner_text() == "10.0.0.1"
    lanes = page.get_by_role("region", name="Workers over time")
    assert lanes.get_by_text("own time of a step").is_visible()
    own = page.get_by_role("region", name="Own time of a step").get_by_role("listitem")
    assert own.first.inner_text().split() == ["w0", "40"]
    assert lanes.get_by_role("listitem").all_inner_texts()[:2] == ["node 10.0.0.1", "node 10.0.0.2"]
    for dark in (False, True):
        page.emulate_media(color_scheme="dark" if dark else "light")
        assert serious(page) == []
        card = page.locator(".system-card")
        card.screenshot(path=tmp_path / f"system-{'dark' if dark else 'light'}.png")
    page.set_viewport_size(NARROW)
    wait_for("narrow plots", lambda: (cpu.bounding_box() or {"width": 999})["width"] <= NARROW["width"])
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    page.locator(".system-card").screenshot(path=tmp_path / "system-narrow.png")


def test_a_stretch_that_is_drawn_over_is_read_again_with_points_of_its_own(shown: Shown) -> None:
    fill(shown)
    page = shown.page
    page.goto(f"{shown.url}/jobs/{shown.job_id}")
    cpu = shown.plot("CPU of workers")
    cpu.wait_for()
    cpu.scroll_into_view_if_needed()
    box = cpu.bounding_box()
    assert box is not None
    with page.expect_response(lambda answer: "/system?" in answer.url and "to=" in answer.url) as again:
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 60, steps=4)
        page.mouse.up()
    times = next(one["times"] for one in again.value.json()["series"] if one["id"] == "w0")
    assert START.timestamp() < times[0] < times[-1] < START.timestamp() + 5 * SAMPLES / 2
    page.wait_for_url("**axis=wall*")
