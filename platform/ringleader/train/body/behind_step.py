"""Whether a loop's body leaves the loop behind its `session.step`."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ringleader.program_text.current_line import CodeLine
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.step_items import method_calls

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
        for batches, session in method_calls(loop.iter, "batches")
        if batches.lineno <= line <= (batches.end_lineno or line)
    )


def _body_leaves(loop: ast.For, session: str) -> bool:
    steps = [
        (step.end_lineno, step.end_col_offset)
        for statement in loop.body
        for step, stepped in method_calls(statement, "step")
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


def _own(nodes: Iterable[ast.AST], *, leaves: bool = True) -> Iterator[ast.AST]:
    """The nodes of a loop's body, but for those in functions, and for `break` in loops of its own."""
    for node in nodes:
        if isinstance(node, APART) or (isinstance(node, ast.Break) and not leaves):
            continue
        yield node
        yield from _own(ast.iter_child_nodes(node), leaves=leaves and not isinstance(node, LOOPS))
