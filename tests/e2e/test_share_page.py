"""What one takes from a chart in a real browser: its values, its picture, and a link to what is seen."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from axe import serious
from browsed import browsed
from control_plane import SPEC
from PIL import Image, ImageColor
from sqlalchemy import select

from ringleader.bench.control_plane.crowd import plane
from ringleader.bench.control_plane.history import fill
from ringleader.bench.page.browser import logged_in
from ringleader.bench.page.page import store_curves
from ringleader_api.store import Store
from ringleader_api.store.tables import Job, Metric

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.timeout(420)  # a machine that does much else
FORMULA = '=HYPERLINK("http://evil.test","a,b")'
STEPS = 40


def filled(home: Path) -> list[str]:
    """A home with two jobs of 40 steps, the first with a name that is a formula. Returns their ids."""
    fill(home, 2)
    store_curves(home, STEPS)
    store = Store.at(home)
    with store.write() as session:
        jobs = session.scalars(select(Job).order_by(Job.id)).all()
        jobs[0].name, jobs[1].name = FORMULA, "plain"
        ids = [job.id for job in jobs]
    store.close()
    return ids


@contextmanager
def shown(tmp_path: Path) -> Iterator[tuple["Page", str, list[str], Path]]:
    home = tmp_path / "home"
    ids = filled(home)
    with plane(home, cpus=1) as server, logged_in(server) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        yield page, server.url, ids, home


def saved(page: "Page", button: "Locator") -> tuple[str, bytes]:
    """The name and the content of the file that a click on the button saves."""
    with page.expect_download() as told:
        button.click()
    return told.value.suggested_filename, Path(told.value.path()).read_bytes()


def stored(home: Path, job_id: str) -> dict[int, float]:
    store = Store.at(home)
    with store.read() as session:
        query = select(Metric.step, Metric.value).where(Metric.job_id == job_id, Metric.name == "loss")
        found = {row.step: row.value for row in session.execute(query)}
    store.close()
    return found


def test_a_comparison_is_saved_with_the_values_of_its_stretch_and_no_formula(
    tmp_path: Path, browser_path: str
) -> None:
    with shown(tmp_path) as (page, url, ids, home):
        page.goto(f"{url}/compare?jobs={','.join(ids)}&from=10&to=20&smooth=loss:0.9")
        page.locator('[data-testid="plot"][data-drawn="2"]').wait_for()
        name, content = saved(page, page.get_by_role("button", name="loss as CSV"))
        assert name == "loss.csv"
        head, *rows = csv.reader(StringIO(content.decode(), newline=""))
        assert head == ["step", f"'{FORMULA}", "plain"]
        want = [stored(home, job_id) for job_id in ids]
        # As they were read, whatever is smoothed on the screen.
        assert [[float(cell) for cell in row] for row in rows] == [
            [float(step), *(values[step] for values in want)] for step in range(10, 21)
        ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_has_the_ground_of_the_theme_and_a_legend_in_the_runs_colours(
    tmp_path: Path, browser_path: str, scheme: str
) -> None:
    with shown(tmp_path) as (page, url, ids, _):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(f"{url}/compare?jobs={','.join(ids)}")
        page.locator('[data-testid="plot"][data-drawn="2"]').wait_for()
        name, content = saved(page, page.get_by_role("button", name="loss as PNG"))
        assert name == "loss.png"
        picture = Image.open(BytesIO(content)).convert("RGB")
        style = "getComputedStyle(document.documentElement)"
        colours = page.evaluate(
            f"['--surface','--run-0','--run-1'].map(one => {style}.getPropertyValue(one).trim())"
        )
        surface, *runs = map(ImageColor.getrgb, colours)
        assert (
            picture.getpixel((2, 2)) == picture.getpixel((picture.width - 2, picture.height - 2)) == surface
        )
        foot = picture.crop((0, picture.height - 30, picture.width, picture.height))
        found = {colour for _, colour in foot.getcolors(1 << 20) or []}
        assert set(runs) <= found


def test_a_copied_link_shows_what_was_seen(tmp_path: Path, browser_path: str) -> None:
    with shown(tmp_path) as (page, url, ids, _):
        page.goto(f"{url}/compare?jobs={','.join(ids)}&from=10&to=20")
        page.locator('[data-testid="plot"][data-drawn="2"]').wait_for()
        page.get_by_role("list", name="Runs").get_by_role("button", name="plain").click()
        page.wait_for_url("**run=*")
        page.get_by_role("button", name="Copy link").click()
        page.get_by_role("button", name="Link copied").wait_for()
        link = page.evaluate("navigator.clipboard.readText()")
        page.goto("about:blank")
        page.goto(link)
        plot = page.locator('[data-testid="plot"][data-drawn="2"]')
        plot.wait_for()
        assert (plot.get_attribute("data-x-min"), plot.get_attribute("data-x-max")) == ("10", "20")
        chosen = page.get_by_role("list", name="Runs").get_by_role("button", pressed=True)
        assert chosen.inner_text().strip() == "plain"


def test_a_jobs_own_chart_is_saved_under_its_name(tmp_path: Path, browser_path: str) -> None:
    with shown(tmp_path) as (page, url, ids, home):
        page.goto(f"{url}/jobs/{ids[1]}?names=loss")
        page.locator('[data-testid="plot"][data-drawn="1"]').wait_for()
        name, content = saved(page, page.get_by_role("button", name="Loss as CSV"))
        assert name == "plain-Loss.csv"
        head, *rows = csv.reader(StringIO(content.decode(), newline=""))
        assert head == ["step", "loss"]
        assert {int(step): float(value) for step, value in rows} == stored(home, ids[1])
        name, content = saved(page, page.get_by_role("button", name="Loss as PNG"))
        assert name == "plain-Loss.png"
        assert Image.open(BytesIO(content)).format == "PNG"


def test_a_report_has_the_axis_and_the_stretch_that_one_sees(tmp_path: Path, browser_path: str) -> None:
    with shown(tmp_path) as (page, url, ids, _):
        seen = {"axis=relative&from=0&to=60": "started from 0 s to 60 s", "axis=rows": None, "": None}
        seen["from=10&to=20"] = "By step from 10 to 20."
        for query, words in seen.items():
            for place in (f"compare?jobs={','.join(ids)}&", f"jobs/{ids[1]}?"):
                page.goto(f"{url}/{place}{query}")
                _, content = saved(page, page.get_by_role("link", name="Report"))
                text = content.decode()
                assert words in text if words else "By " not in text, (place, query)


SWEEP: dict[str, Any] = {
    "name": "lr",
    "template": {"entrypoint": SPEC["entrypoint"], "workers": {"min": 1, "max": 1}},
    "space": {"params.lr": {"values": [0.1, 0.2]}},
    "method": "grid",
    "metric": {"name": "loss"},
}


def test_the_link_to_a_list_a_sweep_or_the_cluster_is_copied(tmp_path: Path, browser_path: str) -> None:
    with browsed(tmp_path / "home", browser_path) as here:
        page = here.page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        made = here.api.post("/sweeps", json=SWEEP).raise_for_status().json()["id"]
        for place in ("jobs?search=digits&sort=name", f"sweeps/{made}", "cluster"):
            page.goto(f"{here.url}/{place}")
            page.get_by_role("button", name="Copy link").click()
            page.get_by_role("button", name="Link copied").wait_for()
            assert page.evaluate("navigator.clipboard.readText()") == f"{here.url}/{place}"
            assert serious(page) == []
        assert here.faults == []


def test_a_report_opens_without_any_request(tmp_path: Path, browser_path: str) -> None:
    with shown(tmp_path) as (page, url, ids, _):
        page.goto(f"{url}/compare?jobs={','.join(ids)}")
        page.locator('[data-testid="plot"][data-drawn="2"]').wait_for()
        name, content = saved(page, page.get_by_role("link", name="Report"))
        assert name == f"comparison-{ids[0][-8:]}-{ids[1][-8:]}.html"
        page.goto(f"{url}/jobs/{ids[0]}")
        name, own = saved(page, page.get_by_role("link", name="Report"))
        assert name == f"report-{ids[0]}.html"
        file = tmp_path / "report.html"
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        for saved_page, heading in ((content, "2 jobs compared"), (own, FORMULA)):
            file.write_bytes(saved_page)
            asked.clear()
            page.goto(file.as_uri())
            page.get_by_role("heading", name=heading).wait_for()
            assert page.get_by_role("img", name="loss", exact=True).count() == 1
            assert asked == [file.as_uri()]
        assert faults == []
        assert serious(page) == []
