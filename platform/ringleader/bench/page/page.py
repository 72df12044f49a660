"""The page in a real browser over a control plane: the first look, from a click to drawn charts, and the cursor."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from math import exp, sin
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.control_plane.api import home_folder
from ringleader.bench.control_plane.crowd import plane
from ringleader.bench.control_plane.history import fill
from ringleader.bench.line import Figure, Target
from ringleader.bench.page import run_page, sampling
from ringleader.bench.page.browser import DEADLINE_MS, logged_in
from ringleader.bench.peers.mlflow_page import MlflowRuns, mlflow_server
from ringleader.bench.registry import Wish
from ringleader.cli.stack.home import Home
from ringleader.wire.ingest import MetricRecord
from ringleader_api.clock import utc_now
from ringleader_api.services.records.points import store_points
from ringleader_api.store import Store
from ringleader_api.store.tables import Job

if TYPE_CHECKING:
    from playwright.sync_api import Page

COMPARE, FIRST = "compare-100x500", "first-page"
CASES = (COMPARE, FIRST, *run_page.CASES, *sampling.CASES)
RUNS, POINTS = 100, 500
DRAWN, CURSOR = Target("ringleader", "<=", 1.0), Target("ringleader", "<=", 0.016)
MOVES = 100
LISTED = 1_000

DRAW = """async ([runs, deadline]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const began = performance.now();
  [...document.querySelectorAll("button")].find((one) => one.textContent === `Compare ${runs}`).click();
  while (document.querySelector(`[data-testid="plot"][data-drawn="${runs}"]`) === null) {
    if (performance.now() - began > deadline) throw new Error(`${runs} runs are not drawn`);
    await frame();
  }
  await frame();
  return (performance.now() - began) / 1000;
}"""
"""Seconds from the click to the frame behind the one that has all lines."""

MOVE = """async (moves) => {
  const plot = document.querySelector(".u-over").getBoundingClientRect();
  const took = [];
  for (let move = 0; move < moves; move++) {
    const [x, y] = [plot.left + (move + 0.5) * plot.width / moves, plot.top + (move % 9 + 1) * plot.height / 11];
    const event = new MouseEvent("mousemove", { bubbles: true, clientX: x, clientY: y, movementX: 1, movementY: 1 });
    const began = performance.now();
    document.querySelector(".u-over").dispatchEvent(event);
    const handled = performance.now() - began;
    took.push(await new Promise((done) => requestAnimationFrame(() => {
      const frame = performance.now();
      setTimeout(() => done(handled + performance.now() - frame));
    })) / 1000);
  }
  if (document.querySelector('[data-testid="plot-values"]') === null) throw new Error("the cursor shows no values");
  return took;
}"""
"""Seconds of work for each move of the cursor, without the wait for the screen's next frame."""


LIST = """async (deadline) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  while (document.querySelector("tr[data-job]") === null) {
    if (performance.now() > deadline) throw new Error("no job is listed");
    await frame();
  }
  await frame();
  return performance.now() / 1000;
}"""
"""Seconds from the beginning of the navigation to the frame behind the one that has jobs."""


def run(wish: Wish) -> Iterator[Figure]:
    """Measure the wanted cases. Raises PeerFailed without a browser, BrokenPromise where something is not drawn."""
    if wish.wants(COMPARE):
        yield from _compare(wish)
    if wish.wants(FIRST):
        yield _first_page(wish)
    yield from run_page.run(wish)
    yield from sampling.run(wish)


def _compare(wish: Wish) -> Iterator[Figure]:
    """Our page and MLflow's in one browser by turns, MLflow's behind our API as users of a stack reach it."""
    with home_folder() as folder:
        fill(folder, RUNS)
        store_curves(folder, POINTS)
        home = Home(folder)
        home.prepare()
        with mlflow_server(home) as tracker:
            theirs = MlflowRuns(tracker, RUNS, POINTS, _loss)
            with plane(folder, cpus=1, mlflow_url=tracker) as server, logged_in(server) as page:
                found, peers = [], []
                for _ in range(15 if wish.full else 5):
                    found.append(_compared(page, server.url))
                    peers.append(theirs.drawn(page, server.url))
    said = f"{RUNS} runs of {POINTS} points, the API a process over SQLite, Chromium without a screen"
    yield Figure(
        case=COMPARE,
        unit="s",
        better="lower",
        ours=[drawn for drawn, _ in found],
        peers=peers,
        peer_name="mlflow",
        target=DRAWN,
        settings=f"{COMPARE}, from the click to the drawn curves: {said}; mlflow: its page of the metric with the same "
        f"curves, over SQLite and through our API, from the list of the runs, which has loaded",
    )
    yield Figure(
        case=f"{COMPARE}-cursor",
        unit="s",
        better="lower",
        ours=[took for _, cursor in found for took in cursor],
        target=CURSOR,
        settings=f"{COMPARE}-cursor, work for a move of the cursor, 100 moves for each drawing: {said}",
    )


def _first_page(wish: Wish) -> Figure:
    """The list of jobs as somebody sees it who opens the page for the first time: nothing of it is kept before."""
    with home_folder() as folder:
        fill(folder, LISTED)
        with plane(folder, cpus=1) as server, logged_in(server) as page:
            found = [_opened(page, server.url) for _ in range(15 if wish.full else 5)]
    return Figure(
        case=FIRST,
        unit="s",
        better="lower",
        ours=found,
        target=DRAWN,
        settings=f"{FIRST}, from the navigation to the first jobs of {LISTED:,}, without a cache: the API a "
        "process over SQLite, Chromium without a screen",
    )


def _opened(page: "Page", url: str) -> float:
    browser = page.context.browser
    assert browser is not None
    with closing(browser.new_context(storage_state=page.context.storage_state())) as fresh:
        opened = fresh.new_page()
        opened.goto(url)
        return float(opened.evaluate(LIST, DEADLINE_MS))


def _compared(page: "Page", url: str) -> tuple[float, list[float]]:
    """Seconds from the click to drawn curves, and of each move of the cursor over them."""
    page.goto(f"{url}/compare")
    page.get_by_role("button", name="All of these").click()
    page.get_by_role("button", name=f"Compare {RUNS}").wait_for()
    drawn = page.evaluate(DRAW, [RUNS, DEADLINE_MS])
    if (lines := page.get_by_test_id("plot").get_attribute("data-lines")) != str(RUNS):
        raise BrokenPromise(f"{lines} of {RUNS} runs are drawn.")
    # What the view reads besides the curves is not the cursor's work.
    page.get_by_test_id("differences").or_(page.get_by_text("The job files are equal")).wait_for()
    return drawn, page.evaluate(MOVE, MOVES)


def store_curves(home: Path, points: int) -> None:
    """Give each job of the database a loss of so many steps."""
    store = Store.at(home)
    with store.write() as session:
        for number, job_id in enumerate(session.scalars(select(Job.id).order_by(Job.id)).all()):
            store_points(session, job_id, [_point(number, step) for step in range(1, points + 1)])
    store.close()


def _point(number: int, step: int) -> MetricRecord:
    at = utc_now() + timedelta(seconds=step / 2)
    return MetricRecord(
        stream="metrics", seq=step, at=at, generation=1, step=step, values={"loss": _loss(number, step)}
    )


def _loss(number: int, step: int) -> float:
    return 2 * exp(-step / (80 + number)) + 0.05 * sin(step * 1.7 + number) + number / 300 + 0.1
