"""The page in a real browser on the real stack: log in, submit, watch, kill, resize, cancel."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Response,
    ViewportSize,
    sync_playwright,
)
from waiting import wait_for
from whole_stack import Running

from ringleader.client import Job

SHOTS = Path(__file__).parents[2] / "test-results"
WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=390, height=844)
BROWSER_FLAGS = ("--no-sandbox", "--disable-dev-shm-usage")  # root in a container
LONG = "epochs: 20000"
FIRST_STEP_S = 150
LOSS = '[data-testid="plot"][data-name="Loss"]'

pytestmark = pytest.mark.timeout(420)  # whichever comes first starts the stack


@pytest.fixture(scope="module")
def browser(browser_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(BROWSER_FLAGS))
        yield browser
        browser.close()


class Complaints:
    """What a browser would complain about: console errors and warnings, exceptions, failed requests."""

    def __init__(self, page: Page) -> None:
        self.all: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.all.append(f"exception: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.all.append(f"console {message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        # The page itself ends its streams and polls when it leaves a view; the browser calls that aborted.
        if request.failure != "net::ERR_ABORTED":
            self.all.append(f"failed: {request.method} {request.url} {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.all.append(f"status {response.status}: {response.request.method} {response.url}")


@pytest.fixture
def page(browser: Browser, stack: Running) -> Iterator[Page]:
    """A page that is logged in and on the job list."""
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(stack.url)
    assert urlsplit(page.url).path == "/login"
    page.get_by_label("Token").fill(stack.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Jobs").wait_for()
    yield page
    context.close()


def points_drawn(page: Page) -> int:
    """Those of the loss's curve."""
    return int(page.locator(LOSS).get_attribute("data-points") or 0) if page.locator(LOSS).count() else 0


def number_in(page: Page, test_id: str, attribute: str) -> int:
    found = page.get_by_test_id(test_id)
    return int(found.get_attribute(attribute) or 0) if found.count() else 0


def step_shown(page: Page) -> int:
    return int(page.get_by_test_id("step").inner_text().replace(",", ""))


def submit_in_the_form(page: Page, name: str) -> str:
    """Send the example under another name and with more epochs; returns the job's id."""
    page.get_by_role("link", name="Submit", exact=True).click()
    editor = page.get_by_test_id("jobfile")
    editor.fill(re.sub(r"epochs: \d+", LONG, editor.input_value()))
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/jobs/job_*")
    return urlsplit(page.url).path.rpartition("/")[2]


def kill_a_worker(job: Job) -> None:
    workers = [worker for worker in job.workers() if worker.role == "worker" and worker.rank == 1]
    assert workers, "a job of three has a worker of rank 1"
    os.kill(workers[0].pid, signal.SIGKILL)


MARKER = """() => {
  const chart = document.querySelector('[data-testid="charts"]');
  const marker = chart.querySelector('[data-testid="lost-marker"]');
  const dot = marker.getBoundingClientRect();
  const [left, right, low, high] = ['plotLeft', 'plotRight', 'xMin', 'xMax'].map((name) => Number(chart.dataset[name]));
  const share = (Number(marker.dataset.step) - low) / (high - low);
  return [dot.x + dot.width / 2, chart.getBoundingClientRect().x + left + share * (right - left)];
}"""


def marker_pixel(page: Page) -> tuple[float, float]:
    """(where the first marker lies, where its step lies on the axis): read at once, for the axis moves on."""
    lies, belongs = page.evaluate(MARKER)
    return lies, belongs


def test_a_job_is_submitted_watched_hurt_resized_and_cancelled_in_the_browser(
    page: Page, stack: Running
) -> None:
    complaints = Complaints(page)
    job = stack.client.job(submit_in_the_form(page, "page-digits"))
    try:
        wait_for("plotted points", lambda: points_drawn(page) >= 10, FIRST_STEP_S)
        steps_rise_and_points_are_added(page)
        a_killed_worker_is_marked_at_its_step(page, job)
        a_replacement_is_drawn(page, job)
        photograph(page)
        a_resize_takes_effect(page, job)
        a_cancelled_job_ends(page, job)
        assert complaints.all == []
    finally:
        if not job.refresh().state.ended:
            job.cancel(grace_s=0)


def steps_rise_and_points_are_added(page: Page) -> None:
    step, points = step_shown(page), points_drawn(page)
    wait_for("higher step", lambda: step_shown(page) > step)
    wait_for("more points", lambda: points_drawn(page) > points)


def a_killed_worker_is_marked_at_its_step(page: Page, job: Job) -> None:
    kill_a_worker(job)
    page.get_by_test_id("lost-marker").first.wait_for(timeout=60_000)
    lost = wait_for("worker.lost", lambda: [e for e in job.events() if e.type == "worker.lost"])
    assert number_in(page, "lost-marker", "data-step") == lost[0].data["step"]
    lies, belongs = marker_pixel(page)
    assert abs(lies - belongs) < 1.5  # the dot's own rounding to pixels
    page.get_by_test_id("recoveries").wait_for(timeout=60_000)


def a_replacement_is_drawn(page: Page, job: Job) -> None:
    """It forms a third generation, whose line stands behind that of the loss."""
    wait_for("world of three", lambda: job.refresh().view.world_size == 3, 60)
    wait_for("line of generation 3", lambda: "3" in generations_drawn(page))
    step = step_shown(page)
    wait_for("thirty steps of the three", lambda: step_shown(page) > step + 30, 60)


def generations_drawn(page: Page) -> list[str | None]:
    return [mark.get_attribute("data-generation") for mark in page.get_by_test_id("generation").all()]


def photograph(page: Page, of: str = "", there: str = "plot") -> None:
    """Screenshots of job page, where `there` shows, and list at both widths; nothing may stick out sideways."""
    SHOTS.mkdir(exist_ok=True)
    here = page.url
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        page.screenshot(path=SHOTS / f"page-job{of}-{size['width']}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.get_by_role("link", name="Jobs", exact=True).first.click()
        page.get_by_test_id("jobs").wait_for()
        page.screenshot(path=SHOTS / f"page-list{of}-{size['width']}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.locator(f'a[href="{urlsplit(here).path}"]').click()
        page.get_by_test_id(there).first.wait_for()
    page.set_viewport_size(WIDE)


def a_resize_takes_effect(page: Page, job: Job) -> None:
    page.get_by_role("button", name="Resize").click()
    page.get_by_label("Max workers").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Resize").click()
    wait_for("world of two", lambda: job.refresh().view.world_size == 2, 60)
    wait_for("two workers shown", lambda: page.get_by_test_id("workers").locator("tbody tr").count() == 2)


def a_cancelled_job_ends(page: Page, job: Job) -> None:
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    wait_for("end", lambda: job.refresh().state.ended, 60)
    assert job.state == "cancelled"
    page.get_by_test_id("job-state").get_by_text("cancelled").wait_for(timeout=60_000)


RAISES = """
import torch
from torch.utils.data import TensorDataset

def train(session):
    net = session.model(torch.nn.Linear(4, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for batch in session.batches(TensorDataset(torch.ones(640, 4))):
        if session.global_step == 30:
            raise ValueError("this is my own mistake")
        session.step(net(batch[0]).square().mean())
"""


def test_a_function_that_raises_is_shown_as_failed_with_code_words_and_hint(
    page: Page, stack: Running, tmp_path: Path
) -> None:
    complaints = Complaints(page)
    (tmp_path / "wrong.py").write_text(RAISES)
    wrong = {
        "name": "page-wrong",
        "entrypoint": "wrong:train",
        "working_dir": ".",
        "workers": {"min": 1, "max": 1},
        "batch": {"global_size": 16},
    }
    job = stack.client.submit(wrong, working_dir=tmp_path)
    row = page.locator(f'tr[data-job="{job.id}"]')
    row.locator('[data-state="failed"]').wait_for(timeout=FIRST_STEP_S * 1000)
    assert "ValueError: this is my own mistake" in row.inner_text()
    row.get_by_role("link").click()
    page.get_by_test_id("job-state").get_by_text("failed").wait_for()
    reason = job.refresh().view.reason
    assert reason is not None
    assert reason.code == "entrypoint_raised"
    shown = page.get_by_test_id("why")
    shown.wait_for()
    assert shown.get_by_test_id("why-code").inner_text() == reason.code
    words = shown.inner_text()
    assert reason.message.strip() in words
    assert (
        words.count("ValueError: this is my own mistake") == 2
    )  # in a sentence, and where the traceback ends
    events = page.locator(".events-card")
    events.get_by_text("Job failed").wait_for()
    assert "Traceback" not in events.inner_text()
    assert shown.get_by_test_id("why-hint").inner_text() == reason.hint != ""
    photograph(page, of="-failed", there="why")
    assert complaints.all == []


def test_a_wrong_job_file_is_explained_key_by_key(page: Page) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    editor = page.get_by_test_id("jobfile")
    editor.fill(editor.input_value().replace("min: 2", "min: 9") + "\nworkerz: 3\n")
    page.get_by_role("button", name="Submit", exact=True).click()
    findings = page.get_by_test_id("findings").locator("li")
    findings.first.wait_for()
    assert {one.get_attribute("data-pointer") for one in findings.all()} == {"/workers/min", "/workerz"}
    assert page.locator(".gutter-bad").count() == 2


def test_the_form_says_beforehand_whether_a_job_would_wait(page: Page) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_role("button", name="Preview").click()
    preview = page.get_by_test_id("preview")
    preview.wait_for()
    assert "It would" in preview.inner_text()


def test_without_a_session_every_view_leads_to_the_log_in_form(browser: Browser, stack: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    for path in ("/", "/submit", "/jobs/job_x"):
        page.goto(stack.url + path)
        assert urlsplit(page.url).path == "/login"
    context.close()


def test_a_session_that_ends_leads_back_to_the_log_in_form(page: Page) -> None:
    page.context.clear_cookies()
    page.wait_for_url("**/login?next=*", timeout=60_000)
