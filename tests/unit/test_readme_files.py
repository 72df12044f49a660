"""What the pages of this repository point to exists, and their small examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pages import ROOT, all_pages, fenced

from ringleader.spec import JobSpec
from ringleader.wire.states import EDGES
from ringleader_api.settings import PREFIX, Settings

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SHORT, LONG = 150, 80
"""Lines of a README that leads on, and of a page that explains one room."""


def prose_of(page: str) -> str:
    return FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in shown}


@pytest.mark.parametrize("page", all_pages())
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: str) -> None:
    wrong = []
    for target, anchor in LINK.findall(prose_of(page)):
        # What is generated from the code is not there before it is generated.
        if "reference/" in target:
            continue
        file = ROOT / page if not target else ROOT.joinpath(page).parent / target
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


def test_every_page_is_reached_from_the_index() -> None:
    reached, ahead = set(), [ROOT / "docs/index.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = LINK.findall(prose_of(page.relative_to(ROOT).as_posix()))
        ahead += [
            (page.parent / target).resolve() for target, _ in links if target and "reference/" not in target
        ]
    assert [page for page in all_pages() if page.startswith("docs/") and ROOT / page not in reached] == []


@pytest.mark.parametrize("page", ["platform/README.md", "api/README.md"])
def test_a_readme_beside_the_code_is_short_and_leads_on(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= SHORT


@pytest.mark.parametrize("page", [page for page in all_pages() if page.startswith("docs/explanation/")])
def test_a_page_that_explains_a_room_is_short(page: str) -> None:
    if "measurements" not in page:
        assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= LONG


def test_every_variable_that_a_page_names_is_read_by_the_code() -> None:
    code = [
        *ROOT.glob("platform/ringleader/**/*.py"),
        *ROOT.glob("api/ringleader_api/**/*.py"),
        ROOT / "Makefile",
    ]
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    known |= {
        name for file in code for name in re.findall(r"RINGLEADER_[A-Z_]+", file.read_text(encoding="utf-8"))
    }
    for page in all_pages():
        named = set(
            re.findall(r"RINGLEADER_[A-Z_]*[A-Z](?![A-Z_])", (ROOT / page).read_text(encoding="utf-8"))
        )
        assert named <= known, page


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
    folder = ROOT / "jobs/ringleader_jobs"
    files = sorted(folder.glob("*.yaml"))
    assert [file.stem for file in files] == sorted(
        file.stem for file in folder.glob("*.py") if file.stem != "__init__"
    )
    for file in files:
        assert JobSpec.load(file).entrypoint == f"ringleader_jobs.{file.stem}:train"


def test_the_layout_names_every_room_of_the_platform() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("platform/ringleader ")]
    rooms = {path.parent.name for path in (ROOT / "platform/ringleader").glob("*/__init__.py")}
    assert set(line.split()[1:]) == rooms | {"errors"}


def test_the_moves_between_states_are_those_of_the_table() -> None:
    page = (ROOT / "docs/explanation/api.md").read_text(encoding="utf-8")
    shown = {
        (before, after)
        for froms, to in re.findall(
            r"^\| ((?:`[a-z]+`(?:, )?)+) \| ((?:`[a-z]+`(?:, )?)+) \| ", page, flags=re.MULTILINE
        )
        for before in re.findall(r"[a-z]+", froms)
        for after in re.findall(r"[a-z]+", to)
    }
    assert shown == {(before, after) for before, afters in EDGES.items() for after in afters}


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
