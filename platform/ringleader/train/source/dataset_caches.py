"""Rows that a data set of the program keeps once it has read them, by the program's text.

Each worker reads rows of its own, so that such an attribute differs from worker to worker, and that does not matter:
the value kept under a row's number is what reading it again would give, unless it is drawn.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ringleader.train.source.program_scope import ADDS, Function, Key

READS = "__getitem__"
DRAWS = re.compile(
    r"torch\.(rand|normal|bernoulli|multinomial)\w*|((np|numpy)\.)?random\.(?!default_rng)[a-z]\w*"
)
"""Functions that draw from a global generator."""
SEEDS = re.compile(r"torch\.manual_seed|((np|numpy)\.)?random\.seed")


def memos(tree: ast.Module) -> set[Key]:
    """The attributes that only classes with a `__getitem__` change: once where they are made, and elsewhere only where
    an entry was found missing, by a value that is no constant, not drawn, and not made of the attribute itself."""
    filled: set[str] = set()
    other: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        functions = [part for part in node.body if isinstance(part, Function)]
        reads = any(function.name == READS for function in functions)
        for function in functions:
            if function.name == "__init__":
                continue
            other |= set(_drawn(function))
            for attribute, fills in _changes(function):
                (filled if fills and reads else other).add(attribute)
    return {("", f".{attribute}") for attribute in filled - other}


def _drawn(function: ast.AST) -> Iterator[str]:
    """The attributes of `self` that get a value which the function draws."""
    calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    if any(map(SEEDS.fullmatch, calls)) or not any(map(DRAWS.fullmatch, calls)):
        return
    drawn: set[str] = set()
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        match node:
            case ast.Assign(targets=targets, value=value) if _draws(value, drawn):
                drawn.update(target.id for target in targets if isinstance(target, ast.Name))
                yield from (name for target in targets for name in _named(target))
            case ast.Call(func=ast.Attribute(value=filled, attr="setdefault"), args=[_, value]):
                yield from _named(filled) if _draws(value, drawn) else ()


def _draws(value: ast.AST, drawn: set[str]) -> bool:
    """Whether the value is drawn, or made of one of these variables."""
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id in drawn:
            return True
        if not isinstance(node, ast.Call) or not DRAWS.fullmatch(ast.unparse(node.func)):
            continue
        if all(keyword.arg != "generator" for keyword in node.keywords):
            return True
    return False


def _changes(function: ast.AST) -> Iterator[tuple[str, bool]]:
    """The attributes of `self` that the function changes, each with whether it is filled where it was empty."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
                found[target.id].update(_named(node.value))
    yield from _in_block(function, frozenset(), found)


def _in_block(
    node: ast.AST, empty: frozenset[str], found: Mapping[str, set[str]]
) -> Iterator[tuple[str, bool]]:
    """The changes below a node. `empty`: attributes in which an entry was found missing on the way to this node;
    `found`: attributes by the variable that was taken from them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield from _assigned(child, empty)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            yield from _called(child, child.func)
        missing = empty
        if isinstance(child, ast.If):
            missing = empty | frozenset(_missing(child.test, found))
            yield from _in_block(child.test, empty, found)
            # `_in_block` walks the children of one node: a module stands for a list of statements.
            yield from _in_block(ast.Module(child.body, []), missing, found)
            yield from _in_block(ast.Module(child.orelse, []), empty, found)
            continue
        if isinstance(child, ast.Try):
            # `try: return self.x[row]` and a handler: what failed in the body is missing there.
            missing = empty | {name for part in child.body for name in _named(part)}
            yield from _in_block(ast.Module(child.body, []), empty, found)
            for handler in child.handlers:
                yield from _in_block(handler, missing, found)
            yield from _in_block(ast.Module([*child.orelse, *child.finalbody], []), empty, found)
            continue
        yield from _in_block(child, missing, found)


def _assigned(
    node: ast.Assign | ast.AugAssign | ast.AnnAssign, empty: frozenset[str]
) -> Iterator[tuple[str, bool]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for name in _named(target):
            fills = name in empty and not isinstance(node, ast.AugAssign) and _is_read_anew(node.value, name)
            yield name, fills


def _called(call: ast.Call, function: ast.Attribute) -> Iterator[tuple[str, bool]]:
    for name in _named(function.value):
        if function.attr == "setdefault" and len(call.args) == 2:
            yield name, _is_read_anew(call.args[1], name)
        elif function.attr in ADDS and call.args:
            yield name, False


def _is_read_anew(value: ast.AST | None, name: str) -> bool:
    """Whether the value is a row as it is read: no mark, no empty container, and nothing made of the attribute."""
    marks = value is None or isinstance(value, ast.Constant)
    gathers = (isinstance(value, ast.List) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )
    return not marks and not gathers and value is not None and name not in _named(value)


def _missing(test: ast.expr, found: Mapping[str, set[str]]) -> Iterator[str]:
    """The attributes that a test finds empty: `row not in self.x`, `self.x[row] is None`, `not self.x`, and the same of
    a variable taken from one."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        looked_at: ast.AST = test.operand
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn):
        looked_at = test.comparators[0]
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is):
        looked_at = test.left
    else:
        return
    yield from _named(looked_at)
    for node in ast.walk(looked_at):
        if isinstance(node, ast.Name):
            yield from found.get(node.id, ())


def _named(node: ast.AST) -> list[str]:
    """The attributes of `self` in it."""
    return [
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"
    ]
