"""What a wheel holds, and what its base alone can do."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
BASE_USE = """
import sys
import ringleader, ringleader.client, ringleader.cli.main, ringleader.spec, ringleader.wire.package
assert ringleader.Client.__name__ == "Client"
assert ringleader.JobSpec.load(__import__("pathlib").Path(sys.argv[1])).name == "digits"
assert ringleader.cli.main.main(["validate", sys.argv[1]]) == 0
heavy = {"torch", "ray", "numpy", "pyarrow", "mlflow", "fastapi", "sqlalchemy", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return next(folder.glob("ringleader-*.whl"))


def test_a_wheel_holds_the_three_packages_and_no_platform(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "ringleader",
        "ringleader_api",
        "ringleader_jobs",
    }
    assert "ringleader_jobs/digits.yaml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_base_wheel_alone_is_sdk_and_command_line(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in _needed("ringleader"):
        _link(name, site)
    job_file = site / "ringleader_jobs" / "digits.yaml"
    done = subprocess.run(
        # -I -S: nothing but the standard library and what PYTHONPATH would have named.
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(site)!r}){BASE_USE}",
            str(job_file),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "digits.yaml is valid" in done.stdout


def _needed(root: str) -> set[str]:
    """Distributions that the base install reaches."""
    found: set[str] = set()
    frontier = [root]
    while frontier:
        for line in distribution(frontier.pop()).requires or []:
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            if name not in found and (
                requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            ):
                found.add(name)
                frontier.append(name)
    return found


def _link(name: str, site: Path) -> None:
    package = distribution(name)
    for top in _tops(name):
        (site / top).symlink_to(Path(str(package.locate_file(top))))


def _tops(name: str) -> Iterator[str]:
    files = distribution(name).files or []
    yield from {file.parts[0] for file in files if file.parts[0] != ".." and file.parts[0] != "__pycache__"}
