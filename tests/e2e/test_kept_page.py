"""What a job keeps, on its page in a real browser: downloaded, looked at, and begun another job with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from axe import serious
from browsed import Browsed, browsed
from control_plane import RESULT, event, outcome
from PIL import Image
from safetensors.torch import load_file, save_file
from waiting import wait_for

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointPosition, Manifest
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot

pytestmark = pytest.mark.timeout(420)  # a machine that does much else


@pytest.fixture
def here(browser_path: str, tmp_path: Path) -> Iterator[Browsed]:
    with browsed(tmp_path / "home", browser_path) as here:
        yield here
        assert here.faults == []


def checkpoint(home: Path, job_id: str, step: int, *, final: bool = False) -> tuple[str, torch.Tensor]:
    """Write one of the job's. Returns its place, and the weight that is in it."""
    folder = Folder(str(home / "checkpoints" / job_id))
    position = CheckpointPosition(step, step, attempt=1, generation=1, final=final)
    weight = torch.full((3,), float(step))
    pieces = Snapshot({"models": [{"w": weight}]}, CheckpointPart()).write(folder, position.name)
    folder.commit(position.name, Manifest(position, tuple(pieces), {}))
    return folder.place_of(position.name), weight


def saved(seq: int, step: int, uri: str) -> dict[str, Any]:
    return event(seq, "checkpoint.saved", step=step, uri=uri, size_bytes=2500, copied_s=0.1, removed=[])


def test_the_weights_of_a_running_jobs_checkpoint_are_saved_and_begun_another_job_with(here: Browsed) -> None:
    launch, page = here.started(params={"lr": 0.5}), here.page
    job_id = launch.job_id
    places = [checkpoint(here.home, job_id, step) for step in (10, 20)]
    here.tell(launch, *(saved(n, 10 * n, uri) for n, (uri, _) in enumerate(places, 1)))
    page.goto(f"{here.url}/jobs/{job_id}")
    rows = page.get_by_test_id("checkpoints").locator("tbody tr")
    wait_for("checkpoints", lambda: rows.count() == 2)
    assert [row.get_attribute("data-step") for row in rows.all()] == ["20", "10"]
    with page.expect_download() as told:
        page.get_by_role("link", name="Weights of step 20").click()
    name = places[1][0].rpartition("/")[2]
    assert told.value.suggested_filename == f"{job_id}-{name}.safetensors"
    assert torch.equal(load_file(told.value.path())["w"], places[1][1])
    # One that comes later is there without the page being loaded again.
    uri, _ = checkpoint(here.home, job_id, 30)
    here.tell(launch, saved(3, 30, uri), event(4, "checkpoint.failed", step=40, why="no space left"))
    wait_for("the next checkpoint", lambda: rows.count() == 3)
    page.get_by_text("The checkpoint of step 40 could not be written").wait_for()
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    start = page.get_by_role("link", name="Start from here with step 10")
    assert rows.first.evaluate(
        "row => [...row.cells].every(c => c.getBoundingClientRect().right <= innerWidth)"
    )
    start.click()
    editor = page.get_by_test_id("jobfile")
    wait_for("the clone", lambda: places[0][0] in editor.input_value())
    spec = yaml.safe_load(editor.input_value())
    assert (spec["init_from"], spec["params"]) == (places[0][0], {"lr": 0.5})
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(lambda now: "/jobs/job_" in now and job_id not in now)
    begun = here.api.get(f"/jobs/{page.url.rpartition('/')[2]}").json()
    assert begun["spec"]["init_from"] == places[0][0]
    page.get_by_role("heading", name="digits").wait_for()


def test_a_job_that_has_succeeded_shows_its_final_weights_and_images(here: Browsed) -> None:
    launch, page = here.started(), here.page
    job_id = launch.job_id
    files = here.home / "jobs" / job_id / "artifacts"
    files.mkdir(parents=True)
    save_file({"w": torch.ones(2)}, files / "weights.safetensors")
    Image.new("RGB", (8, 8), "teal").save(files / "digit-00000012.png")
    uri, _ = checkpoint(here.home, job_id, 100, final=True)
    done = outcome(2, "succeeded", result={**RESULT, "weights_uri": "file:///w"})
    here.tell(launch, saved(1, 100, uri), done)
    wait_for("its end", lambda: here.state(job_id) == "succeeded")
    page.goto(f"{here.url}/jobs/{job_id}")
    page.get_by_text("end of the job").wait_for()
    with page.expect_download() as told:
        page.get_by_role("link", name="Download the final weights").click()
    assert torch.equal(load_file(told.value.path())["w"], torch.ones(2))
    image = page.get_by_role("img", name="digit, step 12")
    image.scroll_into_view_if_needed()
    wait_for("a drawn image", lambda: image.evaluate("one => one.naturalWidth") == 8)
    assert serious(page) == []
    page.get_by_role("link", name="Start from here with the final weights").click()
    editor = page.get_by_test_id("jobfile")
    wait_for("the clone", lambda: f"init_from: {job_id}" in editor.input_value())


def test_a_trace_is_opened_on_the_page_and_a_stretch_of_it_is_chosen(here: Browsed) -> None:
    launch, page = here.started(), here.page
    here.tell(launch)
    files = here.home / "jobs" / launch.job_id / "artifacts"
    files.mkdir(parents=True)
    place = {"ph": "X", "pid": 1, "tid": 0, "args": {"rank": 0}}
    events = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "w0"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "training"}},
        *({**place, "name": f"step {n}", "ts": n * 1e6, "dur": 1e6} for n in range(8)),
        {**place, "name": "forward", "ts": 0, "dur": 5e5},
    ]
    (files / "trace.json").write_text(json.dumps({"traceEvents": events}))
    page.goto(f"{here.url}/jobs/{launch.job_id}")
    page.get_by_role("button", name="Open the trace").click()
    card = page.get_by_role("region", name="Trace", exact=True)
    card.get_by_text("8.0 s of 8.0 s").wait_for()
    picture = card.get_by_role("img", name="Trace")
    box = picture.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 12)
    card.get_by_text("w0 training: step ").wait_for()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 12, steps=3)
    page.mouse.up()
    card.get_by_text("of 8.0 s").wait_for()
    assert card.get_by_text("8.0 s of 8.0 s").count() == 0
    card.get_by_role("button", name="Show all").click()
    card.get_by_text("8.0 s of 8.0 s").wait_for()
    assert serious(page) == []
