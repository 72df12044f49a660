"""Whether training reads an attribute of a class: lines of eval mode alone, such as those that use a cache of products
of the weights, make no other weights."""

import ast
from functools import lru_cache
from pathlib import Path
from typing import Any

from ringleader.program_text.current_line import BELOW
from ringleader.program_text.loop_bodies import text_of


@lru_cache(maxsize=256)
def trains_by(file: str, attribute: str) -> bool:
    """Whether a line of that file of the program reads or calls the attribute, other than in eval mode alone."""
    text = None if not file or file.startswith(BELOW) else text_of(file)
    left: list[ast.AST] = [text.tree] if text is not None else []
    while left:
        node = left.pop()
        if isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load):
            return True
        trains = _tests_mode(node.test) if isinstance(node, ast.If | ast.IfExp) else None
        if isinstance(node, ast.If | ast.IfExp) and trains is not None:
            parts: Any = node.body if trains else node.orelse
            left += parts if isinstance(parts, list) else [parts]
        else:
            left += ast.iter_child_nodes(node)
    return False


def line_of(file: str, attribute: str) -> str:
    """The place, as "file:line", at which the file sets the attribute to more than a constant; empty without one."""
    text = None if not file or file.startswith(BELOW) else text_of(file)
    sets = (node for node in ast.walk(text.tree) if isinstance(node, ast.Assign)) if text is not None else ()
    for node in sets:
        named = any(isinstance(each, ast.Attribute) and each.attr == attribute for each in node.targets)
        if named and not isinstance(node.value, ast.Constant):
            return f"{Path(file).name}:{node.lineno}"
    return ""


def _tests_mode(test: ast.expr) -> bool | None:
    """Whether a test is true in training mode alone, or in eval mode alone; None: it asks for something else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inside = _tests_mode(test.operand)
        return None if inside is None else not inside
    return True if isinstance(test, ast.Attribute) and test.attr == "training" else None
