"""The order in which statements read and set a variable."""

import ast
from collections.abc import Iterable, Iterator, Sequence

from ringleader.program_text.program_scope import captured_by

Loop = ast.For | ast.AsyncFor | ast.While
APART = (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_ANEW = frozenset(
    {
        *(
            "bernoulli_",
            "cauchy_",
            "exponential_",
            "geometric_",
            "log_normal_",
            "normal_",
            "random_",
            "uniform_",
        ),
        *("clear", "copy_", "fill", "fill_", "set_", "zero_"),
    }
)
"""Methods that give a tensor, an array or a list other contents, whatever it had."""


def given(loop: Loop) -> list[ast.expr]:
    """What a loop gives values to as a turn begins: in `while`, whose body does so itself, the names of `:=` that its
    test always comes to."""
    return list(_always_named(loop.test)) if isinstance(loop, ast.While) else [loop.target]


def _always_named(test: ast.expr) -> Iterator[ast.expr]:
    """What an expression names, whatever its parts give: the second of `a and b` may be left out."""
    match test:
        case ast.NamedExpr(target=target, value=value):
            yield from _always_named(value)
            yield target
        case ast.BoolOp(values=[part, *_]) | ast.IfExp(test=part):
            yield from _always_named(part)
        case _ if not isinstance(test, COMPREHENSIONS | ast.Lambda):
            parts = [each for each in ast.iter_child_nodes(test) if isinstance(each, ast.expr)]
            yield from (name for each in parts for name in _always_named(each))


def blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    """The blocks of statements inside this one."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


def binds(node: ast.AST, name: str) -> bool:
    """Whether the variable gets a value somewhere in this node."""
    return any(
        name == captured_by(n)
        or (
            isinstance(n, ast.Name | ast.Attribute)
            and isinstance(n.ctx, ast.Store)
            and name == (n.id if isinstance(n, ast.Name) else f".{n.attr}")
        )
        for n in ast.walk(node)
    )


def overwrites(node: ast.AST, name: str) -> bool:
    """Whether a call in the node, or an assignment to all items, gives the variable's value other contents of which
    nothing goes by the earlier ones: `noise.normal_()`, `numpy.copyto(rows, x)`, `torch.add(a, b, out=c)`, `c[:] = x`.
    """
    return any(
        any(_is_name(place, name) for place in places) and not any(names(each, name) for each in given)
        for places, given in map(overwritten, ast.walk(node))
    )


def overwritten(node: ast.AST) -> tuple[list[ast.expr], list[ast.AST]]:
    """What the very node gives other contents, and what these are made of."""
    match node:
        case ast.Call(func=ast.Attribute(value=place, attr=method), args=given, keywords=more) if (
            method in _ANEW
        ):
            return [place], [*given, *more]
        case ast.Call(func=ast.Attribute(attr="copyto"), args=[place, *given]):
            return [place], [*given]
        case ast.Call(args=given, keywords=more):
            return [each.value for each in more if each.arg == "out"], [*given]
        case ast.Assign(targets=[ast.Subscript(value=place, slice=ast.Slice(None, None, None))], value=value):
            return [place], [value]
    return [], []


def _is_name(place: ast.expr, name: str) -> bool:
    return name == (f".{place.attr}" if isinstance(place, ast.Attribute) else getattr(place, "id", ""))


def span(node: ast.AST) -> tuple[int, int]:
    """The first and the last line."""
    return getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0


def names(node: ast.AST, name: str) -> bool:
    """Whether it reads a variable of that name: another statement of the same line may, too."""
    return any(
        (
            isinstance(n, ast.Name | ast.Attribute)
            and isinstance(n.ctx, ast.Load)
            and name == (n.id if isinstance(n, ast.Name) else f".{n.attr}")
        )
        or (isinstance(n, ast.AugAssign) and binds(n.target, name))
        for n in ast.walk(node)
    )


def read_line(node: ast.AST, lines: set[int]) -> int:
    """The first of these lines that the node has, or one that is in it; 0 where there is none."""
    if not hasattr(node, "lineno"):
        return next((read for child in ast.iter_child_nodes(node) if (read := read_line(child, lines))), 0)
    begin, end = span(node)
    return next((line for line in sorted(lines) if begin <= line <= end), 0)


def parents(nodes: Iterable[ast.AST]) -> dict[ast.AST, ast.AST]:
    """The node around each child of these nodes."""
    return {child: node for node in nodes for child in ast.iter_child_nodes(node)}


def own_statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The statements in a loop's body, but for those in loops and functions of its own."""
    for node in body:
        yield node
        if not isinstance(node, APART):
            for block in blocks(node):
                yield from own_statements(block)


def ends_loop(body: Sequence[ast.AST]) -> bool:
    """Whether statements in a loop's body may end it: by `break`, `return`, or `session.stop()`."""
    for statement in own_statements(body):
        call = statement.value if isinstance(statement, ast.Expr) else None
        stops = (
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "stop"
        )
        if stops or isinstance(statement, ast.Break | ast.Return):
            return True
    return False
