"""The wheel of this checkout, and a folder that holds what its base install needs."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def build(folder: Path) -> Path:
    """Build the wheel into the folder, without network; returns its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return next(folder.glob("ringleader-*.whl"))


def link_needed(site: Path) -> None:
    """Link every distribution that the base install reaches."""
    for name in _needed("ringleader"):
        package = distribution(name)
        for top in _tops(name):
            (site / top).symlink_to(Path(str(package.locate_file(top))))


def _needed(root: str) -> set[str]:
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


def _tops(name: str) -> Iterator[str]:
    files = distribution(name).files or []
    yield from {file.parts[0] for file in files if file.parts[0] != ".." and file.parts[0] != "__pycache__"}
