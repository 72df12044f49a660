"""The curves of the recipes in docs/curves: each picture is of its data, and each run of the job file as it is now."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import ringleader_jobs
from ringleader.spec import JobSpec

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "docs/curves").glob("*.json"))


@pytest.fixture(scope="module")
def curves() -> ModuleType:
    """scripts/curves.py."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return import_module("curves")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_a_picture_shows_what_was_recorded(file: Path, curves: ModuleType) -> None:
    assert file.with_suffix(".svg").read_text() == curves.svg(json.loads(file.read_text()))


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_what_was_recorded_is_a_run_of_the_job_file(file: Path) -> None:
    kept = json.loads(file.read_text())
    spec = JobSpec.load(Path(ringleader_jobs.__file__).parent / f"{file.stem}.yaml")
    assert kept["params"] == {name: value for name, value in spec.params.items() if name != "text"}
    assert kept["batch"] == spec.batch.global_size


def test_long_curves_are_thinned_by_means(curves: ModuleType) -> None:
    points = [(step, float(step % 2)) for step in range(1, 161)]
    thinned = curves.thinned(points)
    assert len(thinned) == curves.MOST_POINTS
    assert thinned[0] == (2, 0.5)
    assert thinned[-1][0] == 160


def test_every_curve_is_on_the_page() -> None:
    page = (ROOT / "docs/how-to/recipes.md").read_text()
    assert [file.stem for file in KEPT if f"../curves/{file.stem}.svg" not in page] == []
    assert len(KEPT) >= 5
