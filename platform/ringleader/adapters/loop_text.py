"""The text of a loop over batches: the calls in its body that an adapter has to know of before the first turn."""

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

from ringleader.program_text.current_line import CodeLine
from ringleader.program_text.loop_bodies import text_of

NO_VALUE = object()


def loop_at(place: CodeLine) -> ast.For | None:
    """The loop whose header is at a place; None where there is no text."""
    code, line = place
    return _loop_at(code.co_filename, line)


@lru_cache(maxsize=256)
def _loop_at(file: str, line: int) -> ast.For | None:
    text = text_of(file)
    loops = (node for node in ast.walk(text.tree) if isinstance(node, ast.For)) if text else ()
    headed = (loop for loop in loops if loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno))
    return next(headed, None)


def calls_of(loop: ast.For, method: str) -> list[ast.Call]:
    """The calls of a method, or of a function of that name, in a loop's body, in loops inside of it too."""
    nodes = (node for statement in loop.body for node in ast.walk(statement))
    return [node for node in nodes if isinstance(node, ast.Call) and _method(node) == method]


def calls_each_turn(loop: ast.For, method: str) -> list[ast.Call]:
    """Those of them that each turn comes to once: under no condition, and in no loop inside of it."""
    return [call for call in _always(loop.body) if _method(call) == method]


def receiver_of(call: ast.Call, frame: FrameType) -> Any:
    """The object whose method is called, in the function that runs in `frame`; NO_VALUE where that is no plain name or
    attribute, nor an item of a dict. Nothing of the program is called for it."""
    return value_of(call.func.value, frame) if isinstance(call.func, ast.Attribute) else NO_VALUE


def argument_of(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """The expression that a call gives for a parameter; None where it gives none."""
    given = call.args[place] if len(call.args) > place else None
    return next((key.value for key in call.keywords if key.arg == name), given)


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """As `receiver_of`, of an expression."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, NO_VALUE))
    if isinstance(node, ast.Attribute):
        # Only what lies in the object itself: a property would run the program's lines.
        return getattr(value_of(node.value, frame), "__dict__", {}).get(node.attr, NO_VALUE)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        held = value_of(node.value, frame)
        return held.get(node.slice.value, NO_VALUE) if type(held) is dict else NO_VALUE
    return node.value if isinstance(node, ast.Constant) else NO_VALUE


def _always(statements: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    for statement in statements:
        if isinstance(statement, ast.With):
            yield from _always(statement.body)
        elif isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield from (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _method(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))
