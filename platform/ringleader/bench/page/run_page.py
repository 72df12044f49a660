"""The page of one job in a real browser: a run of a million steps opened and zoomed, and a step of a live one."""

import random
import time
from collections.abc import Iterator
from datetime import timedelta
from math import exp, sin
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.control_plane.api import home_folder
from ringleader.bench.control_plane.crowd import KeptConnection, plane
from ringleader.bench.control_plane.followers import supervisor
from ringleader.bench.control_plane.history import fill
from ringleader.bench.line import Figure, Target
from ringleader.bench.page.browser import DEADLINE_MS, logged_in
from ringleader.bench.registry import Wish
from ringleader.wire.ingest import MetricRecord
from ringleader_api.clock import utc_now
from ringleader_api.services.records.points import store_points
from ringleader_api.store import Store
from ringleader_api.store.tables import Job

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN, LIVE = "run-1e6-steps", "live"
CASES = (RUN, LIVE)
STEPS, AT_ONCE = 1_000_000, 20_000
OPENED, ZOOMED, SEEN = (Target("ringleader", "<=", bar) for bar in (1.0, 0.3, 0.5))
CHARTS = 3

OPEN = """async ([charts, deadline]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const began = performance.now();
  document.querySelector("a.job-link").click();
  while (document.querySelectorAll('[data-testid="plot"][data-drawn="1"]').length < charts) {
    if (performance.now() - began > deadline) throw new Error("the charts are not drawn");
    await frame();
  }
  await frame();
  return (performance.now() - began) / 1000;
}"""
"""Seconds from the click to the frame behind the one that has all charts."""

ZOOM = """async ([share, deadline]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const over = document.querySelector(".u-over");
  const { left, top, width } = over.getBoundingClientRect();
  const mouse = (type, at) => new MouseEvent(type, {
    bubbles: true, clientX: left + at * width, clientY: top + 20, movementX: 1, movementY: 1, button: 0,
  });
  over.dispatchEvent(mouse("mousemove", share));
  over.dispatchEvent(mouse("mousedown", share));
  over.dispatchEvent(mouse("mousemove", share + 0.1));
  const began = performance.now();
  document.dispatchEvent(mouse("mouseup", share + 0.1));
  const drawn = () => {
    const { first, xMin } = document.querySelector('[data-testid="plot"]').dataset;
    return Number(xMin) > 1 && Number(first) >= Number(xMin);
  };
  while (!drawn()) {
    if (performance.now() - began > deadline) throw new Error("the stretch is not drawn");
    await frame();
  }
  await frame();
  return (performance.now() - began) / 1000;
}"""
"""Seconds from the end of a drag to the frame behind the one that has the stretch's own points."""

SEE = """async ([step, deadline]) => {
  const began = performance.now();
  while (!(Number(document.querySelector('[data-testid="plot"]')?.dataset.last) >= step)) {
    if (performance.now() - began > deadline) throw new Error(`step ${step} is not drawn`);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  }
  return Date.now() / 1000;
}"""
"""The Unix time at which a step is drawn."""


def run(wish: Wish) -> Iterator[Figure]:
    """Measure the wanted cases. Raises PeerFailed without a browser, BrokenPromise where something is not drawn."""
    if wish.wants(RUN):
        yield from _long(15 if wish.full else 5)
    if wish.wants(LIVE):
        yield from _live(200 if wish.full else 40, random.Random(wish.seed))  # noqa: S311 (not a secret)


def _long(times: int) -> Iterator[Figure]:
    with home_folder() as home:
        fill(home, 1)
        store_steps(home, STEPS)
        with plane(home, cpus=1) as server, logged_in(server) as page:
            found = [_opened(page, server.url, turn) for turn in range(times)]
    said = f"{STEPS:,} steps of {CHARTS} metrics, the API a process over SQLite, Chromium without a screen"
    yield _figure(RUN, [opened for opened, _ in found], OPENED, f"from the click to the drawn charts: {said}")
    words = f"from the end of a drag over a tenth to its own points: {said}"
    yield _figure(f"{RUN}-zoom", [zoomed for _, zoomed in found], ZOOMED, words)


def _live(steps: int, chance: random.Random) -> Iterator[Figure]:
    with home_folder() as home:
        home.mkdir(mode=0o700, parents=True)
        with plane(home, cpus=1) as server, logged_in(server) as page:
            with KeptConnection(server.url, server.token) as caller:
                job_id = caller.submit()
            told = supervisor(home, job_id)
            with KeptConnection(server.url, told["token"]) as caller:
                _settle(caller, job_id, 1)
                page.goto(f"{server.url}/jobs/{job_id}")
                page.evaluate(SEE, [1, DEADLINE_MS])
                late = [_seen(page, caller, job_id, step, chance) for step in range(2, steps + 2)]
    yield _figure(LIVE, late, SEEN, "from a settled step, as a supervisor posts it, to its drawn point")


def _figure(case: str, ours: list[float], target: Target, settings: str) -> Figure:
    return Figure(
        case=case, unit="s", better="lower", ours=ours, target=target, settings=f"{case}, {settings}"
    )


def _opened(page: "Page", url: str, turn: int) -> tuple[float, float]:
    """Seconds from a click in the list to drawn charts, and from the end of a drag to its stretch."""
    page.goto(f"{url}/jobs")
    page.locator("a.job-link").wait_for()
    opened = page.evaluate(OPEN, [CHARTS, DEADLINE_MS])
    points = page.get_by_test_id("plot").first.get_attribute("data-points")
    if not 100 <= int(points or 0) <= 1000:
        raise BrokenPromise(f"{points} points of {STEPS} are drawn.")
    return opened, page.evaluate(ZOOM, [0.1 + turn % 5 * 0.15, DEADLINE_MS])


def _seen(page: "Page", caller: KeptConnection, job_id: str, step: int, chance: random.Random) -> float:
    # The page asks in even intervals: at a random time within one.
    time.sleep(chance.uniform(0.1, 0.6))
    settled_at = time.time()
    _settle(caller, job_id, step)
    return float(page.evaluate(SEE, [step, DEADLINE_MS])) - settled_at


def _settle(caller: KeptConnection, job_id: str, step: int) -> None:
    status = {
        "state": "running",
        "generation": 1,
        "world_size": 1,
        "progress": {"step": step, "total_steps": None, "epoch": 0},
        "workers": [],
    }
    record = _record(step).model_dump(mode="json")
    body = {"attempt": 1, "records": [record], "status": status}
    answered, told = caller.call("POST", f"/api/v1/jobs/{job_id}/ingest", body)
    if answered != 200:
        raise PeerFailed(f"ingest answered {answered}: {told}")


def store_steps(home: Path, steps: int) -> None:
    """Give the first job of the database so many steps."""
    store = Store.at(home)
    with store.read() as session:
        job_id = session.scalars(select(Job.id).order_by(Job.id)).first()
    if job_id is None:
        raise PeerFailed("there is no job.")
    for first in range(1, steps + 1, AT_ONCE):
        with store.write() as session:
            records = [_record(step) for step in range(first, min(steps + 1, first + AT_ONCE))]
            store_points(session, job_id, records)
    store.close()


def _record(step: int) -> MetricRecord:
    values: dict[str, float | None] = {
        "loss": 2 * exp(-step / 2e5) + 0.05 * sin(step * 1.7) + 0.1,
        "samples_per_s": 1000 + 50 * sin(step * 0.9),
        "world_size": 2.0,
    }
    at = utc_now() + timedelta(seconds=step / 100)
    return MetricRecord(stream="metrics", seq=step, at=at, generation=1, step=step, values=values)
