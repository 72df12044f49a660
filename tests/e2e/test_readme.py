"""The tour of the README, as it is printed there, against a running stack."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from whole_stack import Running

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK_DEADLINE_S = 420

pytestmark = pytest.mark.timeout(6 * BLOCK_DEADLINE_S)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the words behind it, its text."""

    language: str
    words: tuple[str, ...]
    text: str


def blocks(page: str) -> list[Block]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [Block(language, tuple(words.split()), text) for language, words, text in found]


def shown_files(page: str) -> dict[str, str]:
    """Blocks marked `file=NAME`."""
    return {
        word.removeprefix("file="): block.text
        for block in blocks(page)
        for word in block.words
        if word.startswith("file=")
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the files the tour shows."""
    folder = tmp_path_factory.mktemp("tour")
    for name, text in shown_files("README.md").items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(block: Block, desk: Path, stack: Running) -> str:
    """What the block printed; fails with it when the block does."""
    shell = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RINGLEADER_")}
    tools = Path(sys.executable).parent
    done = subprocess.run(
        [*shell, block.text],
        cwd=desk,
        env={**environ, "RINGLEADER_HOME": str(stack.home), "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=BLOCK_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tour(desk: Path, stack: Running) -> list[str]:
    """What its blocks printed, one after the other."""
    found = [block for block in blocks("README.md") if "tour" in block.words]
    assert [block.language for block in found] == ["bash", "bash", "python", "bash"]
    return [run(block, desk, stack) for block in found if "curl" not in block.words or shutil.which("curl")]


def test_the_tour_works_as_it_is_printed(tour: list[str]) -> None:
    submit, resize, python = tour[:3]
    assert "spiral" in submit
    assert "succeeded" in resize
    assert "'steps_lost': 0" in python
    assert re.search(r"\b[0-9a-f]{64}\b", python)


@pytest.mark.usefixtures("tour")
def test_the_tour_leaves_jobs_that_succeeded(stack: Running) -> None:
    """Every job it submitted reached its end with the accuracy a reader would see."""
    jobs = [job for job in stack.client.jobs() if job.view.name == "spiral"]
    assert len(jobs) == 2
    for job in jobs:
        assert job.state == "succeeded"
        assert job.result is not None
        assert job.result.scores["accuracy"] > 0.95
