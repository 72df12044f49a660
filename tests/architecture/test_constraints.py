"""The pinned versions can be installed on every Python that README names, whichever its patch level."""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.findall(
    r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
def test_no_pin_needs_a_later_python(python: str) -> None:
    refused, seen = [], 0
    for name, version in PINNED:
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue  # of an extra that is not installed here
        # Another version than the pinned one says nothing of that.
        if found["Version"].split("+")[0] == version:
            seen += 1
            [needed] = found.get_all("Requires-Python") or [""]
            refused += [name] if python not in SpecifierSet(needed) else []
    assert seen > len(PINNED) // 2
    assert refused == []
