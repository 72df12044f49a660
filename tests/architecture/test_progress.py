"""The committed position has one writer: train/state/progress.py."""

import ast
from pathlib import Path

import pytest

from ringleader.parsing import parse
from ringleader.train.state.progress import Progress

TRAIN = Path(__file__).parents[2] / "platform/ringleader/train"
WRITERS = {"state/progress.py", "between_calls/session_calls.py"}
CALLS = {"finished", "offset", "left"}
MUTATORS = {"append", "extend", "add", "update", "clear", "remove", "pop"}


def writes(text: str) -> list[int]:
    """The lines that write to a position, or to the calls of one."""
    found = []
    for node in ast.walk(parse(text)):
        match node:
            case ast.Assign(targets=targets):
                goals = [one for target in targets for one in ast.walk(target)]
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                goals = [target]
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in MUTATORS:
                goals = [value]
            case _:
                continue
        if any(is_position(goal) for goal in goals):
            found.append(node.lineno)
    return found


def is_position(node: ast.AST) -> bool:
    """Whether the node is `….progress.NAME`, or `….calls.NAME` of what others heal from."""
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    if name == "progress":
        return node.attr in Progress.__slots__
    return name in ("calls", "_calls") and node.attr in CALLS


def test_only_progress_writes_the_position() -> None:
    found = [
        f"{path.relative_to(TRAIN)}:{line}"
        for path in sorted(TRAIN.rglob("*.py"))
        if str(path.relative_to(TRAIN)) not in WRITERS
        for line in writes(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "group.progress.step += 1",
        "self._group.progress.loss = loss",
        "progress.samples, n = 1, 2",
        "group.progress.calls.left.add(3)",
        "calls.offset = 4",
        "member.progress.staleness.append(1)",
    ],
)
def test_a_write_is_seen(line: str) -> None:
    assert writes(line) == [1]


def test_a_read_is_none() -> None:
    assert writes("here = group.progress.step + calls.offset") == []
