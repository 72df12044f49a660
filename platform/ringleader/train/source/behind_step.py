"""Whether a loop's body leaves the loop behind its `session.step`."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ringleader.train.body.dry_turn import CodeLine
from ringleader.train.source.loop_bodies import text_of

LOOPS = (ast.For, ast.AsyncFor, ast.While)
APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def leaves_behind_step(place: CodeLine) -> bool:
    """Whether the body of the loop over `session.batches` at `place` has a `break` or a `return` behind its step. No,
    where there is no text."""
    code, line = place
    return _leaves(code.co_filename, line)


@lru_cache(maxsize=256)
def _leaves(file: str, line: int) -> bool:
    text = text_of(file)
    loops = (node for node in ast.walk(text.tree) if isinstance(node, ast.For)) if text else ()
    return any(
        _body_leaves(loop, session)
        for loop in loops
        for batches, session in _calls(loop.iter, "batches")
        if batches.lineno <= line <= (batches.end_lineno or line)
    )


def _body_leaves(loop: ast.For, session: str) -> bool:
    steps = [
        (step.end_lineno, step.end_col_offset)
        for statement in loop.body
        for step, stepped in _calls(statement, "step")
        if stepped == session
    ]
    # Where the step is in a function that the body calls, any place may be behind it.
    first = min(steps, default=(0, 0))
    behind = (
        node
        for node in _own(loop.body)
        if (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)) > first
    )
    return any(isinstance(node, ast.Break | ast.Return) for node in behind)


def _calls(node: ast.AST, name: str) -> Iterator[tuple[ast.Call, str]]:
    """The calls of a method of that name below the node, each with the text of what has it."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == name:
            yield each, ast.unparse(each.func.value)


def _own(nodes: Iterable[ast.AST], *, leaves: bool = True) -> Iterator[ast.AST]:
    """The nodes of a loop's body, but for those in functions, and for `break` in loops of its own."""
    for node in nodes:
        if isinstance(node, APART) or (isinstance(node, ast.Break) and not leaves):
            continue
        yield node
        yield from _own(ast.iter_child_nodes(node), leaves=leaves and not isinstance(node, LOOPS))
