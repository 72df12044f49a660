"""The order in which statements read and set a variable."""

import ast
from collections.abc import Iterable, Iterator, Sequence

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
    """What a loop gives values to as a turn begins: nothing in `while`, whose body does so itself."""
    return [] if isinstance(loop, ast.While) else [loop.target]


def first(nodes: Iterable[ast.AST], name: str, lines: set[int]) -> int | None:
    """The first use of the variable in these statements: the line of a read, 0 where they set it, None for neither.

    Args:
        name: ".name" for an attribute.
        lines: the lines in which it is read.
    """
    for node in nodes:
        found = _first_in(node, name, lines)
        if found is not None:
            return found
    return None


def blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    """The blocks of statements inside this one."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


def binds(node: ast.AST, name: str) -> bool:
    """Whether the variable gets a value somewhere in this node."""
    return any(
        isinstance(n, ast.Name | ast.Attribute)
        and isinstance(n.ctx, ast.Store)
        and name == (n.id if isinstance(n, ast.Name) else f".{n.attr}")
        for n in ast.walk(node)
    )


def overwrites(node: ast.AST, name: str) -> bool:
    """Whether a call in the node, or an assignment to all items, gives the variable's value other contents of which
    nothing goes by the earlier ones: `noise.normal_()`, `numpy.copyto(rows, x)`, `torch.add(a, b, out=c)`, `c[:] = x`.
    """
    return any(
        any(_is_name(place, name) for place in places) and not any(names(each, name) for each in given)
        for places, given in map(_overwritten, ast.walk(node))
    )


def _overwritten(node: ast.AST) -> tuple[list[ast.expr], list[ast.AST]]:
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


def _first_in(node: ast.AST, name: str, lines: set[int]) -> int | None:
    inside = list(blocks(node))
    if not inside:
        if overwrites(node, name):
            return 0
        read = _read(node, lines) if names(node, name) else 0
        return read if read else (0 if binds(node, name) else None)
    header = [child for child in ast.iter_child_nodes(node) if not any(child in block for block in inside)]
    found = first(header, name, lines)
    if found is not None:
        return found
    results = [first(block, name, lines) for block in inside if block]
    if any(results):
        return next(filter(None, results))
    # A loop's body may run no turn, and a branch may be left out: those set the variable only perhaps.
    always = isinstance(node, ast.With | ast.AsyncWith | ast.Try)
    whole = isinstance(node, ast.If) and bool(node.orelse) and all(result == 0 for result in results)
    return 0 if whole or (always and results[0] == 0) else None


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


def _read(node: ast.AST, lines: set[int]) -> int:
    if not hasattr(node, "lineno"):
        return next((read for child in ast.iter_child_nodes(node) if (read := _read(child, lines))), 0)
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
