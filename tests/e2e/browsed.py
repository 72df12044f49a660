"""A browser logged in to a control plane over a cluster in memory, whose jobs tell what a test has them tell."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from control_plane import SPEC, FakeCluster, status
from playwright.sync_api import Page, sync_playwright
from served import FLAGS, served
from waiting import wait_for

from ringleader_api.backend import Launch


@dataclass
class Browsed:
    """The page, and the API beside it. `faults` are exceptions of its scripts."""

    url: str
    home: Path
    cluster: FakeCluster
    api: httpx.Client
    page: Page
    faults: list[str]

    def started(self, **changes: Any) -> Launch:
        """A job whose first attempt has been started."""
        job_id = self.api.post("/jobs", json={**SPEC, **changes}).raise_for_status().json()["id"]
        return wait_for("start", lambda: self.cluster.alive.get((job_id, 1)))

    def tell(self, launch: Launch, *records: dict[str, Any], state: str = "running", **more: Any) -> None:
        """Post the records as the job's supervisor does."""
        body = {"attempt": 1, "status": status(state, **more), "records": list(records)}
        bearer = {"Authorization": f"Bearer {launch.ingest_token}"}
        self.api.post(f"/jobs/{launch.job_id}/ingest", json=body, headers=bearer).raise_for_status()

    def state(self, job_id: str) -> str:
        return str(self.api.get(f"/jobs/{job_id}").raise_for_status().json()["state"])


@contextmanager
def browsed(home: Path, browser_path: str) -> Iterator[Browsed]:
    cluster = FakeCluster()
    with served(home, cluster) as url, sync_playwright() as playwright:
        token = (home / "token").read_text()
        api = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"})
        with closing(playwright.chromium.launch(executable_path=browser_path, args=FLAGS)) as browser, api:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "console", lambda told: faults.append(told.text) if "Security Policy" in told.text else None
            )
            page.goto(url)
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("heading", name="Jobs").wait_for()
            yield Browsed(url, home, cluster, api, page, faults)
