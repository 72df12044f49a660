"""Loops that end after a number of turns: refused, because a worker's turns are those of its own slices."""

import ast
from functools import lru_cache
from pathlib import Path

from ringleader.errors import StepMisuse
from ringleader.train.body.dry_turn import Place
from ringleader.train.source.loop_bodies import text_of

COUNTING = frozenset(["islice", "zip", "zip_longest", "pairwise", "batched"])


def check_not_counted(place: Place) -> None:
    """Refuse a call of `session.batches` at `place` whose turns are counted.

    Raises:
        StepMisuse: its batches go through a function that counts turns, or pairs them with something else.
    """
    code, line = place
    name = _counting(code.co_filename).get(line)
    if name is None:
        return
    where = f"{Path(code.co_filename).name}:{line}"
    raise StepMisuse(
        f"{name}(…) goes over session.batches ({where}): it counts slices, and how many batches that are depends on "
        "the number of workers.",
        hint="Go over session.batches itself, and leave at a step: if session.global_step >= last: break, before the "
        "turn's step; or session.stop(). What belongs to a row comes from the data set.",
    )


@lru_cache(maxsize=64)
def _counting(file: str) -> dict[int, str]:
    """By line of a file on which `session.batches(…)` is passed to a counting function, that function's name."""
    text = text_of(file)
    found: dict[int, str] = {}
    for node in ast.walk(text.tree) if text else ():
        name = _name(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in COUNTING:
            inner = (each for argument in node.args for each in ast.walk(argument))
            calls = [each for each in inner if isinstance(each, ast.Call) and _name(each.func) == "batches"]
            found |= {number: name for each in calls for number in range(each.lineno, _end(each) + 1)}
    return found


def _name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _end(node: ast.Call) -> int:
    return node.end_lineno or node.lineno
