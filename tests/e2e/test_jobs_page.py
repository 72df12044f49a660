"""The list of jobs in a real browser: scrolled, filtered, its columns chosen, its views saved, acts on several jobs."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from axe import serious
from control_plane import SPEC, FakeCluster, metric, status
from playwright.sync_api import Browser, Page, StorageState, ViewportSize, sync_playwright
from served import FLAGS, served
from waiting import wait_for

WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=360, height=740)
PAGE = 50  # jobs that the page reads at once
NUMBERS = count()
LOSSES = {"low-then-high": [4.0, 1.0, 9.0], "high-then-low": [8.0, 6.0, 2.0], "middle": [5.0, 5.0, 5.0]}
DRAWN = (
    "() => [...document.querySelectorAll('tr[data-job]')].map((row) => [+row.dataset.index, row.dataset.job])"
)


@dataclass
class Here:
    """A control plane whose cluster is full, and a browser that is logged in."""

    url: str
    api: httpx.Client
    browser: Browser
    session: StorageState

    def submit(self, group: str, name: str, **changes: Any) -> str:
        labels = {"group": group}
        answer = self.api.post("/jobs", json={**SPEC, "name": name, "labels": labels, **changes})
        return str(answer.raise_for_status().json()["id"])

    def listed(self, group: str) -> list[dict[str, Any]]:
        answer = self.api.get("/jobs", params={"label": f"group={group}", "limit": 200})
        return list(answer.raise_for_status().json()["items"])


@pytest.fixture(scope="module")
def here(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    home = tmp_path_factory.mktemp("home")
    cluster = FakeCluster(cpus=len(LOSSES))
    with served(home, cluster) as url, sync_playwright() as playwright:
        token = (home / "token").read_text()
        api = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"})
        with closing(playwright.chromium.launch(executable_path=browser_path, args=FLAGS)) as browser, api:
            page = browser.new_page()
            page.goto(url)
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("heading", name="Jobs").wait_for()
            here = Here(url, api, browser, page.context.storage_state())
            # They hold the whole cluster: all others stay queued.
            for name, losses in LOSSES.items():
                train(here, cluster, name, losses)
            yield here


def train(here: Here, cluster: FakeCluster, name: str, losses: list[float]) -> None:
    """A job that has been started and has told of these losses."""
    job_id = here.submit("trained", name, workers={"min": 1, "max": 1})
    launch = wait_for("start", lambda: cluster.alive.get((job_id, 1)))
    records = [metric(step + 1, step, loss=loss) for step, loss in enumerate(losses)]
    told = {"attempt": 1, "status": status("running", world_size=1), "records": records}
    bearer = {"Authorization": f"Bearer {launch.ingest_token}"}
    here.api.post(f"/jobs/{job_id}/ingest", json=told, headers=bearer).raise_for_status()


@pytest.fixture
def page(here: Here) -> Iterator[Page]:
    """A page of a browser that has been logged in; no script fails in it, and none of its parts is refused."""
    faults: list[str] = []
    context = here.browser.new_context(viewport=WIDE, storage_state=here.session)
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda told: faults.append(told.text) if "Security Policy" in told.text else None)
    yield page
    context.close()
    assert faults == []


def loaded(page: Page) -> int:
    return int(page.get_by_test_id("jobs-loaded").get_attribute("data-count") or 0)


def shows(page: Page, path: str, *query: str) -> None:
    """Wait until the page has this address, its query in any order."""

    def same(url: str) -> bool:
        at = urlsplit(url)
        return at.path == path and set(filter(None, at.query.split("&"))) == set(query)

    page.wait_for_url(same, timeout=60_000)


def scroll_to_the_end(page: Page) -> list[str]:
    """The jobs of the list, as their rows come by."""
    box = page.get_by_role("region", name="Job list")
    box.evaluate("it => it.scrollTo(0, 0)")
    drawn: dict[int, str] = {}

    def looked() -> bool:
        drawn.update(dict(page.evaluate(DRAWN)))
        return bool(
            box.evaluate("it => it.scrollBy(0, 600) ?? it.scrollTop + it.clientHeight > it.scrollHeight - 2")
        )

    wait_for("end of the list", lambda: looked() and len(drawn) >= loaded(page))
    drawn.update(dict(page.evaluate(DRAWN)))
    return [drawn[index] for index in sorted(drawn)]


def test_every_job_is_met_once_and_in_order_though_another_comes_in_meanwhile(here: Here, page: Page) -> None:
    for number in range(PAGE + 5):
        here.submit("long", f"long-{number}")
    page.goto(f"{here.url}/jobs?label=group=long")
    wait_for("first page", lambda: page.get_by_test_id("jobs").count() and loaded(page) == PAGE)
    assert page.locator("tr[data-job]").count() < PAGE  # the others are not drawn
    newest = here.submit("long", "long-newest")
    page.locator(f'tr[data-job="{newest}"]').wait_for()
    wait_for("both pages", lambda: scroll_to_the_end(page) and loaded(page) == PAGE + 6)
    assert scroll_to_the_end(page) == [job["id"] for job in here.listed("long")]


def test_what_is_shown_stands_in_the_address_and_can_be_saved_as_a_view(here: Here, page: Page) -> None:
    mine = here.submit("address", "address-1")
    here.submit("other", "other-1")
    page.goto(f"{here.url}/?state=queued")
    shows(page, "/jobs", "state=queued")
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Label").fill("group=address")
    page.get_by_role("button", name="Add").first.click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Labels").check()
    page.get_by_label("Workers").uncheck()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Job", exact=True).click()
    columns = "columns=state,name,progress,submitted_at,labels"
    asked = ["state=queued", "label=group=address", "sort=name", columns]
    shows(page, "/jobs", *asked)
    page.reload()
    row = page.locator("tr[data-job]")
    row.get_by_text("group: address").wait_for()
    assert [one.get_attribute("data-job") for one in row.all()] == [mine]
    assert page.get_by_role("columnheader", name="Job", exact=True).get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Save this view as").fill("mine")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="All jobs, newest first").click()
    shows(page, "/jobs")
    page.get_by_role("button", name="mine", exact=True).click()
    shows(page, "/jobs", *asked)
    page.go_back()
    shows(page, "/jobs")


def test_several_jobs_are_paused_resumed_labelled_cancelled_and_deleted_at_once(
    here: Here, page: Page
) -> None:
    ids = [here.submit("several", f"several-{number}") for number in range(3)]
    page.goto(f"{here.url}/jobs?label=group=several")
    page.get_by_label("Select several-0").check()
    page.get_by_label("Select several-2").check()
    acts = page.get_by_role("region", name="Selected jobs")
    compare = acts.get_by_role("link", name="Compare").get_attribute("href")
    assert compare == f"/compare?jobs={ids[2]},{ids[0]}"

    def states() -> list[str]:
        return [job["state"] for job in reversed(here.listed("several"))]

    for act, then in (("Pause", "paused"), ("Resume", "queued")):
        page.get_by_role("button", name=act, exact=True).click()
        wait_for(then, lambda then=then: states() == [then, "queued", then])
        page.get_by_text("2 jobs selected").wait_for()
    page.get_by_role("button", name="Label…").click()
    question = page.get_by_role("dialog")
    question.get_by_label("Set").fill("team=vision")
    assert serious(page) == []
    question.get_by_role("button", name="Change labels").click()
    wait_for(
        "labels", lambda: [job["labels"].get("team") for job in here.listed("several")].count("vision") == 2
    )
    page.get_by_label("Select several-1").check()
    for act, over in (("Cancel", lambda: states() == ["cancelled"] * 3), ("Delete", lambda: states() == [])):
        page.get_by_role("button", name=f"{act}…", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name=f"{act} 3 jobs").click()
        wait_for(act, over)
    page.get_by_text("No jobs match").wait_for()
    assert page.get_by_text("selected").count() == 0


def test_jobs_are_sorted_by_a_metric_whose_values_and_curve_are_columns(here: Here, page: Page) -> None:
    page.goto(f"{here.url}/jobs?label=group=trained&columns=name,param:lr")
    page.get_by_role("button", name="Columns").click()
    for shown in ("loss min", "loss last", "loss curve"):
        page.get_by_label(shown).check()
    page.keyboard.press("Escape")

    def names() -> list[str]:
        return page.locator(".job-link").all_inner_texts()

    by_min = ["low-then-high", "high-then-low", "middle"]
    page.get_by_role("button", name="loss min").click()
    wait_for("ascending", lambda: names() == by_min)
    page.get_by_role("button", name="loss min").click()
    wait_for("descending", lambda: names() == by_min[::-1])
    page.get_by_role("button", name="loss last").click()
    wait_for("by the newest", lambda: names() == ["high-then-low", "middle", "low-then-high"])
    page.get_by_role("img", name="Curve of loss, now 9").wait_for()
    assert page.get_by_role("row").nth(1).inner_text().split()[-4:] == ["0.1", "2", "2", "2"]
    page.get_by_label("Search jobs").fill("THEN")
    wait_for("search", lambda: names() == ["high-then-low", "low-then-high"])
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Parameter").fill("lr=0.2")
    page.get_by_role("button", name="Add").last.click()
    page.get_by_text("No jobs match").wait_for()


def test_jobs_are_sorted_by_parameters_labels_and_steps_also_at_the_width_of_a_phone(
    here: Here, page: Page
) -> None:
    for name, lr in (("two", 2), ("ten", 10), ("words", "auto")):
        here.submit("sorted", name, params={"lr": lr}, labels={"group": "sorted", "of": name})
    page.set_viewport_size(NARROW)
    page.goto(f"{here.url}/jobs?label=group=sorted&columns=name,progress,param:lr,label:of")

    def names() -> list[str]:
        return page.locator(".job-link").all_inner_texts()

    for click, order in (("lr", ["two", "ten", "words"]), ("lr", ["words", "ten", "two"])):
        page.get_by_role("button", name=click, exact=True).click()
        wait_for(f"order {order}", lambda order=order: names() == order)
    shows(page, "/jobs", "label=group=sorted", "sort=-param:lr", "columns=name,progress,param:lr,label:of")
    page.get_by_role("button", name="of", exact=True).click()
    wait_for("by the label", lambda: names() == ["ten", "two", "words"])
    page.get_by_role("button", name="Progress", exact=True).click()
    wait_for("by the step", lambda: names() == ["words", "ten", "two"])


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_the_list_has_no_serious_fault_for_who_hears_it_or_uses_keys(
    here: Here, page: Page, size: ViewportSize, scheme: Any
) -> None:
    here.submit("heard", f"heard-{next(NUMBERS)}")
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"{here.url}/jobs?label=group=heard")
    page.get_by_label("Select heard-").first.check()
    assert serious(page) == []
    for panel in ("Filters", "Columns", "Views"):
        page.get_by_role("button", name=panel).click()
        page.get_by_role("dialog").wait_for()
        assert serious(page) == []
        page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_jobs_are_shown_in_groups_that_open_to_their_jobs(here: Here, page: Page) -> None:
    page.goto(f"{here.url}/jobs?label=group=trained&columns=name,metric:loss:min")
    page.get_by_role("button", name="Group", exact=True).click()
    page.get_by_label("Group by").select_option("label:group")
    page.keyboard.press("Escape")
    group = page.get_by_role("region", name="group: trained")
    group.get_by_text(f"{len(LOSSES)} jobs").wait_for()
    assert group.locator("dd").all_inner_texts() == ["last 5", "min 1", "max 9"]
    group.get_by_role("button", name="group: trained").press("Enter")
    asked = ["label=group=trained", "columns=name,metric:loss:min", "group=label:group"]
    shows(page, "/jobs", *asked, "open=group=trained")
    page.reload()
    wait_for("jobs", lambda: page.locator("tr[data-job]").count() == len(LOSSES))
    assert serious(page) == []
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    group.get_by_role("button", name="group: trained").press("Enter")
    shows(page, "/jobs", *asked)


def test_a_job_file_begins_with_an_earlier_job_or_a_recipe_and_each_line_is_explained(
    here: Here, page: Page
) -> None:
    job_id = here.submit("cloned", "to-clone", workers={"min": 1, "max": 2})
    page.goto(f"{here.url}/jobs/{job_id}")
    page.get_by_role("link", name="Clone").click()
    editor = page.get_by_test_id("jobfile")
    editor.wait_for()
    # Nothing that the job leaves at its default: that is the schema's, and would bury the rest.
    said = {**SPEC, "name": "to-clone", "labels": {"group": "cloned"}, "workers": {"max": 2}}
    assert yaml.safe_load(editor.input_value()) == {**said, "batch": {"logical_shards": 2}}
    editor.fill("name: a\nworkers:\n  min: 1")
    page.get_by_test_id("key-help").get_by_text("integer; from 1 to 4096; default: 1").wait_for()
    assert serious(page) == []
    editor.press("Control+End")
    editor.press_sequentially("\npl")
    page.get_by_role("group", name="Keys of workers").get_by_role("button", name="placement").press("Enter")
    page.get_by_role("group", name="Values").get_by_role("button", name="spread").click()
    editor.press_sequentially("\ng")
    page.get_by_role("button", name="gpus", exact=True).wait_for()
    assert editor.input_value() == "name: a\nworkers:\n  min: 1\n  placement: spread\n  g"
    assert serious(page) == []

    def chosen_after_undoing() -> bool:
        editor.press("Control+z")
        return "spread" in editor.input_value()

    wait_for("what was chosen undone", lambda: not chosen_after_undoing())
    assert "name: a\nworkers:" in editor.input_value()
    page.get_by_label("Begin with a recipe").select_option("image")
    wait_for("recipe", lambda: "ringleader_jobs.image" in editor.input_value())
    page.get_by_label("Begin with a recipe or an earlier job").select_option(job_id)
    wait_for("earlier job", lambda: "name: to-clone" in editor.input_value())
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_link_that_asks_for_what_no_list_has_says_so(here: Here, page: Page) -> None:
    page.goto(f"{here.url}/jobs?state=flying&search=nobody")
    said = page.get_by_test_id("left-out")
    said.get_by_text("state=flying").wait_for()
    assert "nobody" not in said.inner_text()
    page.get_by_role("button", name="failed").click()
    said.wait_for(state="hidden")
