"""What the pages of this repository point to exists, and their small examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pages import ROOT, fenced

from ringleader.spec import JobSpec

PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")]
    if "node_modules" not in page.parts
)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_recipe_of_the_jobs_page_runs_in_one_process(tmp_path: Path) -> None:
    code = "\n".join(fenced("jobs/README.md", "python", "recipe"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=True
    )
    steps, loss = done.stdout.split()
    assert int(steps) > 0
    assert float(loss) < 0.1


def test_the_job_files_of_the_pages_are_valid() -> None:
    texts = fenced("jobs/README.md", "yaml", "recipe") + fenced("README.md", "yaml", "file=spiral.yaml")
    assert len(texts) == 2
    for text in texts:
        JobSpec.parse(yaml.safe_load(text))


def test_the_job_files_beside_the_recipes_are_valid() -> None:
    files = sorted((ROOT / "jobs/ringleader_jobs").glob("*.yaml"))
    assert [file.name for file in files] == ["digits.yaml", "image.yaml"]
    for file in files:
        JobSpec.load(file)


def test_the_layout_names_every_room_of_the_platform() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("platform/ringleader ")]
    rooms = {path.parent.name for path in (ROOT / "platform/ringleader").glob("*/__init__.py")}
    assert set(line.split()[1:]) == rooms | {"errors"}


def test_every_test_named_as_a_proof_exists() -> None:
    page = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:unit|conformance|architecture|integration|e2e|chaos)/\w+\.py)(?:::(\w+))?`", page
    )
    assert len(named) > 20
    for file, test in named:
        path = ROOT / "tests" / file
        assert path.exists(), file
        assert f"def {test}(" in path.read_text(encoding="utf-8") if test else True, f"{file}::{test}"
