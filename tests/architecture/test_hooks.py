"""The hooks of a commit check what `make check` checks."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_a_commit_is_checked_by_the_commands_of_make_check() -> None:
    (recipe,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    commands = [line.strip().replace("$(VENV)", ".venv/bin") for line in recipe.splitlines()]
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in local["hooks"]] == [c for c in commands if c.startswith(".venv/bin/")]
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
