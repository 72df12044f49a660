"""The cluster in a real browser: nodes with the jobs on them, the queue, quotas, the last days as a file."""

import csv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from axe import serious
from browsed import browsed
from control_plane import SPEC, FakeCluster, status
from playwright.sync_api import Page, ViewportSize
from waiting import wait_for

WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=360, height=740)
WORKER = {"id": "w0", "role": "worker", "rank": 0, "pid": 1, "state": "running", "generation": 1}


@pytest.fixture
def page(browser_path: str, tmp_path: Path) -> Iterator[Page]:
    """A page that is logged in, of a control plane with a running and a waiting job; no script fails in it."""
    with browsed(tmp_path, browser_path) as seen:
        fill(seen.api, seen.cluster)
        seen.page.reload()
        yield seen.page
        assert seen.faults == []


def fill(api: httpx.Client, cluster: FakeCluster) -> None:
    api.patch("/projects/default", json={"quota": {"workers": 8}}).raise_for_status()
    job_id = api.post("/jobs", json={**SPEC, "name": "mine", "workers": {"min": 3, "max": 3}}).json()["id"]
    cluster.places = {(job_id, 1): [("n1", 3)]}
    cluster.addresses = {"n1": "10.0.0.7"}
    launch = wait_for("start", lambda: cluster.alive.get((job_id, 1)))
    members = [{**WORKER, "node": "n1", "shards": [0, 1]}]
    told = {"attempt": 1, "status": status("running", world_size=3, workers=members)}
    bearer = {"Authorization": f"Bearer {launch.ingest_token}"}
    api.post(f"/jobs/{job_id}/ingest", json=told, headers=bearer).raise_for_status()
    api.post("/jobs", json={**SPEC, "name": "later", "workers": {"min": 4, "max": 4}}).raise_for_status()


def test_who_takes_what_is_drawn_read_out_and_kept_as_a_file(page: Page, tmp_path: Path) -> None:
    page.get_by_role("link", name="Cluster").click()
    node = page.locator('[data-node="n1"]')
    node.get_by_role("link", name="mine").wait_for()
    assert "3 places (w0): 3\u00a0CPUs" in node.inner_text()
    assert node.get_by_role("heading").inner_text().startswith("10.0.0.7 n1 ")
    assert node.get_by_role("img").first.get_attribute("aria-label") == "3 of 4 CPUs reserved: mine 3"
    queue = page.get_by_test_id("queue")
    queue.get_by_role("link", name="later").wait_for()
    assert "not known" in queue.inner_text()
    # The reason names the job that holds the places: by its name, and as a link to it.
    queue.get_by_role("row").nth(1).get_by_role("link", name="mine").wait_for()
    assert "3 of 8 workers" in page.get_by_role("list", name="Projects").inner_text()
    assert serious(page) == []
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # As cards: nothing of the queue has to be scrolled to.
    assert page.get_by_role("region", name="Jobs that wait").evaluate(
        "box => box.scrollWidth <= box.clientWidth"
    )
    why = queue.locator('[data-said="Why"]').bounding_box()
    assert why is not None
    assert why["x"] >= 0
    assert why["x"] + why["width"] <= NARROW["width"]
    # Samples are a minute apart: the file of two is made of what the API would answer then.
    two = {
        "at": ["2026-11-26T10:00:00Z", "2026-11-26T10:01:00Z"],
        "nodes": [1, 1],
        "cpus": [4, 4],
        "gpus": [0, 0],
    }
    two |= {"held_cpus": [3, 1], "held_gpus": [0, 0], "jobs": [1, 1], "waiting": [1, 0]}
    page.route("**/cluster/history*", lambda route: route.fulfill(json=two))
    page.reload()
    with page.expect_download() as download:
        page.get_by_role("button", name="Held by jobs as CSV").press("Enter")
    download.value.save_as(tmp_path / "cluster.csv")
    rows = list(csv.DictReader((tmp_path / "cluster.csv").open()))
    assert [row["held_cpus"] for row in rows] == ["3", "1"]
    assert page.get_by_test_id("days").inner_text().split()[-3:] == ["2026-11-26", "0.07", "0.07"]
    page.set_viewport_size(WIDE)
    with page.expect_download() as picture:
        page.get_by_role("button", name="Held by jobs as PNG").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    assert page.get_by_test_id("plot").get_attribute("data-points") == "2"
    assert serious(page) == []


@pytest.mark.parametrize("width", [900, 700, 561])
def test_the_navigation_never_widens_the_page(page: Page, width: int) -> None:
    page.set_viewport_size(ViewportSize(width=width, height=740))
    page.get_by_role("link", name="Cluster").click()
    page.locator('[data-node="n1"]').wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
