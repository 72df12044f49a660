"""The variables that a statement of the program sets, or passes its values on to, by its text."""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from types import CodeType, FrameType, ModuleType
from typing import Any

from torch import nn

from ringleader.program_text.calls import HARMLESS
from ringleader.program_text.loop_bodies import text_of

LATE = frozenset({"<lambda>", "<genexpr>"})
"""Code that runs in another statement than the one that has its text."""
MOST = 3
"""The most variables that are named."""
Position = tuple[int, int]
"""A line, and a column in bytes, as code objects and syntax trees have them."""
Headed = ast.If | ast.While | ast.For | ast.AsyncFor | ast.With | ast.AsyncWith | ast.Match
Inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def assigned_at(tree: ast.AST | None, at: Position, gone: Collection[str] = ()) -> list[str]:
    """The variables that the statement there sets: `best`, `self.best`, `ema` for `ema[name]`; else the one whose
    method it calls: `history` for `history.append(…)`. Values that only a header reads, as in `if score(net) > best:`,
    go into the variables that its block sets.

    Args:
        tree: that of the file; None where its text is not known.
        gone: names that the statement may set without effect on anything behind it.
    """
    statement = _statement(tree, at)
    if statement is None:
        return []
    nodes: Iterable[ast.AST] = _nodes([statement])
    if isinstance(statement, Headed):
        block = [node for node in nodes if isinstance(node, ast.stmt) and node is not statement]
        within = {id(node) for node in _nodes(block)}
        header = [node for node in _nodes([statement]) if id(node) not in within and _stored(node, gone)]
        nodes = header or _nodes(block)
    found = [name for node in nodes if (name := _stored(node, gone))]
    if not found and isinstance(statement, ast.Expr):
        found = [name for name in [_passed_on(statement.value)] if name]
    return list(dict.fromkeys(found))[:MOST]


def assigned_now(frames: Sequence[FrameType], before: Sequence[CodeType], held: Sequence[Any] = ()) -> str:
    """Names of the variables that are made by the line which runs, with commas; empty where it sets none.

    Args:
        frames: those of the program, innermost first.
        before: the code of those that were under way at the last session call, innermost first. Functions called since
            then lose their own variables when they return.
        held: objects that are committed state: their methods change no variable.
    """
    named: list[str] = []
    home = max(min(len(frames) - _common(frames, before), len(frames) - 1), 0)
    for frame in frames[home:]:  # on to a caller only with what is returned to it
        named = _named(frame, (), held)
        if named or not isinstance(_statement(_tree(frame), position(frame)), ast.Return):
            break
    for frame in () if named else reversed(frames[:home]):
        named = named or (
            [] if frame.f_code.co_name in LATE else _named(frame, frame.f_code.co_varnames, held)
        )
    return ", ".join(named)


def _named(frame: FrameType, gone: Collection[str], held: Sequence[Any]) -> list[str]:
    names = assigned_at(_tree(frame), position(frame), gone)
    return [name for name in names if not _is_one_of(_value(frame, name), held)]


def position(frame: FrameType) -> Position:
    """The position of a frame, to the column: two statements may share a line."""
    places = list(frame.f_code.co_positions())
    # f_lasti counts bytes, of which every instruction has two; it is -1 in a frame that has not begun.
    line, _, column, _ = places[frame.f_lasti // 2] if frame.f_lasti >= 0 else (None,) * 4
    return (line, column) if line is not None and column is not None else (frame.f_lineno, -1)


def _tree(frame: FrameType) -> ast.AST | None:
    text = text_of(frame.f_code.co_filename)
    return None if text is None else text.tree


def _common(frames: Sequence[FrameType], before: Sequence[CodeType]) -> int:
    """The number of outermost frames that are the same functions in both."""
    pairs = zip(reversed(frames), reversed(before), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].f_code is pair[1], pairs))


def _statement(tree: ast.AST | None, at: Position) -> ast.stmt | None:
    """The innermost statement there. A column of -1 is not known: then the last that begins in the line or spans it."""
    found = None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.stmt) and not isinstance(node, Inner) and _holds(node, at):
            found = node if found is None or _start(node) >= _start(found) else found
    return found


def _holds(node: ast.stmt, at: Position) -> bool:
    line, column = at
    if column < 0:
        return node.lineno <= line <= (node.end_lineno or node.lineno)
    return _start(node) <= at < (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _start(node: ast.stmt) -> Position:
    return node.lineno, node.col_offset


def _nodes(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Their nodes, in the order of the text; names inside comprehensions and functions are their own."""
    for node in statements:
        yield node
        if isinstance(node, ast.comprehension):
            yield from _nodes([node.iter, *node.ifs])
        elif not isinstance(node, Inner):
            yield from _nodes(ast.iter_child_nodes(node))


def _stored(node: ast.AST, gone: Collection[str]) -> str:
    """The name of a target; empty for all else."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Store):
        return ""
    return "" if isinstance(node, ast.Name) and node.id in gone else _base(node)


def _passed_on(value: ast.AST) -> str:
    """The variable whose method a statement calls, if the call does more than show or store what it is given."""
    value = value.value if isinstance(value, ast.Await) else value
    if (
        not isinstance(value, ast.Call)
        or not isinstance(value.func, ast.Attribute)
        or value.func.attr in HARMLESS
    ):
        return ""
    return _base(value.func.value)


def _base(node: ast.AST) -> str:
    """The variable, or an attribute of one, that an expression begins with: without indices and without calls."""
    while True:
        match node:
            case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner)):
                node = inner
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=inner, attr=attribute):
                before = _base(inner)
                return f"{before}.{attribute}" if before else ""
            case _:
                return ""


def _value(frame: FrameType, name: str) -> Any:
    """The value of that name, found without running a line of the program."""
    first, *rest = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for attribute in rest:
        # Neither getattr nor a property: they may run the program's code.
        own = getattr(value, "__dict__", {})
        parts = own.get("_modules", {}) if isinstance(value, nn.Module) else {}
        value = own.get(attribute, parts.get(attribute))
    return value


def _is_one_of(value: Any, ignored: Sequence[Any]) -> bool:
    return isinstance(value, ModuleType) or any(value is each for each in ignored)
