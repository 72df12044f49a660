"""The control plane gone while pages are open, in a real browser: said on each, made up for without a reload."""

import socket
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from control_plane import SPEC, FakeCluster, metric, status
from playwright.sync_api import Page, sync_playwright
from served import FLAGS, served
from waiting import wait_for

pytestmark = pytest.mark.timeout(420)  # a machine that does much else
VIEWS = ("/jobs", "/cluster", "/alerts", "/sweeps")

GAP = """() => {
  const notice = document.querySelector("main .notice");
  return notice.nextElementSibling.getBoundingClientRect().top - notice.getBoundingClientRect().bottom;
}"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def opened(page: Page, url: str, token: str) -> Page:
    page.goto(f"{url}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Jobs").wait_for()
    return page


def test_a_control_plane_that_is_gone_is_said_on_each_view_and_read_again_when_it_is_back(
    tmp_path: Path, browser_path: str
) -> None:
    home, cluster, port = tmp_path / "home", FakeCluster(), free_port()
    with (
        sync_playwright() as playwright,
        closing(playwright.chromium.launch(executable_path=browser_path, args=FLAGS)) as browser,
    ):
        context = browser.new_context()
        with served(home, cluster, port) as url:
            token = (home / "token").read_text()
            bearer = {"Authorization": f"Bearer {token}"}
            job_id = (
                httpx.post(f"{url}/api/v1/jobs", json=SPEC, headers=bearer).raise_for_status().json()["id"]
            )
            launch = wait_for("start", lambda: cluster.alive.get((job_id, 1)))
            pages = [opened(context.new_page(), url, token)]
            pages += [context.new_page() for _ in VIEWS]
            for page, path in zip(pages, (f"/jobs/{job_id}", *VIEWS), strict=True):
                page.goto(f"{url}{path}")
                page.get_by_role("heading", level=1).wait_for()
                page.evaluate("window.before = true")
        for page in pages:
            page.get_by_text("The control plane does not answer.").first.wait_for()
            assert page.evaluate(GAP) >= 8
        with served(home, cluster, port):
            told = {"attempt": 1, "status": status("running", 7), "records": [metric(1, 7, loss=0.123)]}
            auth = {"Authorization": f"Bearer {launch.ingest_token}"}
            wait_for(
                "control plane that takes what is told",
                lambda: httpx.post(f"{url}/api/v1/jobs/{job_id}/ingest", json=told, headers=auth).is_success,
            )
            for page in pages:
                gone = page.get_by_text("The control plane does not answer.")
                gone.first.wait_for(state="hidden")
                assert page.evaluate("window.before") is True
            pages[0].get_by_test_id("step").get_by_text("7").wait_for()
