"""The tours of the README, the tutorial and the how-to pages, as they are printed there, against a running stack."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import Block, all_pages, blocks_of
from whole_stack import Running

BLOCK_DEADLINE_S = 420
TOURS = [page for page in all_pages() if any("tour" in block.words for block in blocks_of(page))]

pytestmark = pytest.mark.timeout(6 * BLOCK_DEADLINE_S)


def run(block: Block, reporter: Path, stack: Running) -> str:
    """What the block printed; fails with it when the block does."""
    shell = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RINGLEADER_")}
    tools = Path(sys.executable).parent
    done = subprocess.run(
        [*shell, block.text],
        cwd=reporter,
        env={**environ, "RINGLEADER_HOME": str(stack.home), "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=BLOCK_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{block.text}\n{done.stdout}{done.stderr}"
    return done.stdout


def taken(page: str, reporter: Path, stack: Running) -> list[str]:
    """What the blocks of a page's tour printed, one after the other, in a folder with the files that the page shows."""
    for block in blocks_of(page):
        if block.file:
            (reporter / block.file).write_text(block.text, encoding="utf-8")
    found = [block for block in blocks_of(page) if "tour" in block.words]
    return [
        run(block, reporter, stack) for block in found if "curl" not in block.words or shutil.which("curl")
    ]


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory, stack: Running) -> list[str]:
    return taken("README.md", tmp_path_factory.mktemp("tour"), stack)


def test_the_tour_of_the_readme_works_as_it_is_printed(tour: list[str]) -> None:
    submit, resize, python = tour
    assert "spiral" in submit
    assert "succeeded" in resize
    assert "'steps_lost': 0" in python
    assert re.search(r"\b[0-9a-f]{64}\b", python)


@pytest.mark.usefixtures("tour")
def test_the_tour_of_the_readme_leaves_jobs_that_succeeded(stack: Running) -> None:
    """Every job it submitted reached its end with the accuracy a reader would see."""
    jobs = [job for job in stack.client.jobs() if job.view.name == "spiral"]
    assert len(jobs) == 2
    for job in jobs:
        assert job.state == "succeeded"
        assert job.result is not None
        assert job.result.scores["accuracy"] > 0.95


def test_the_tutorial_works_as_it_is_printed(tmp_path: Path, stack: Running) -> None:
    """It submits one job twice, kills a worker of the second, and compares the weights itself."""
    told = taken("docs/tutorial/first-job.md", tmp_path, stack)
    killed = next(text for text in told if "worker.lost" in text)
    assert "recovered" in killed
    assert re.search(r"steps_lost\W+0\b", killed)
    first, second = [job for job in stack.client.jobs() if job.view.name == "moons"]
    assert first.result is not None
    assert second.result is not None
    assert first.result.weights_sha256 == second.result.weights_sha256
    assert first.result.scores["accuracy"] > 0.95


@pytest.mark.parametrize("page", [page for page in TOURS if page.startswith("docs/how-to/")])
def test_the_commands_of_a_how_to_page_work_as_they_are_printed(
    page: str, tmp_path: Path, stack: Running
) -> None:
    taken(page, tmp_path, stack)


def test_no_tour_is_left_out() -> None:
    named = {"README.md", "docs/tutorial/first-job.md"}
    assert {page for page in TOURS if not page.startswith("docs/how-to/")} == named
