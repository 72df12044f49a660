"""Attributes of modules by which their forwards decide what they write into buffers, in the text of their classes.

A range that is set by the first rows and moves with later ones (`if not self.seen: self.low.copy_(…) else: lerp_(…)`)
is another one where another worker's flag was set before.
"""

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from torch import nn

_Methods = Mapping[str, ast.FunctionDef]


def decides_a_write(kind: type, name: str, buffers: Collection[str]) -> bool:
    """Whether a method of that class writes one of these buffers or not, or in another way, by the attribute `name`.
    Not where it only sets the attribute itself, nor where the text is not to be had."""
    methods = _methods_of(kind)
    return any(
        _reads(node.test, name) and not _written(guarded, methods).isdisjoint(buffers)
        for method in methods.values()
        for node, guarded in _guarded(method)
    )


def _guarded(method: ast.FunctionDef) -> Iterator[tuple[ast.If | ast.IfExp, Sequence[ast.AST]]]:
    """The decisions of a method, each with the statements that depend on it: of a value, those that go on from it."""
    for node in ast.walk(method):
        if isinstance(node, ast.If):
            yield node, _under(method, node)
        elif isinstance(node, ast.IfExp):
            yield node, _going_on(method, node)


def _under(method: ast.FunctionDef, decision: ast.If) -> list[ast.stmt]:
    """What stands under an `if`; of one that returns also what is behind it, and in the loops around it."""
    under = [*decision.body, *decision.orelse]
    if not any(isinstance(part, ast.Return) for each in decision.body for part in ast.walk(each)):
        return under
    loops = [each for each in _statements(method) if isinstance(each, ast.For | ast.While)]
    around = [each for each in loops if any(part is decision for part in ast.walk(each))]
    end = decision.end_lineno or decision.lineno
    return [*under, *around, *(each for each in _statements(method) if each.lineno > end)]


def _going_on(method: ast.FunctionDef, decision: ast.IfExp) -> list[ast.stmt]:
    """The statements that have the decision in them, or read a name that is set in one of these."""
    names: set[str] = set()
    found: list[ast.stmt] = []
    while new := [
        each
        for each in _statements(method)
        if each not in found and any(part is decision or _place(part) in names for part in _head(each))
    ]:
        new += [each for node in new if isinstance(node, ast.If) for each in _under(method, node)]
        found += new
        names |= {name for each in new for name in _set_in(each)} - {"-"}
    return found


def _set_in(statement: ast.stmt) -> Iterator[str]:
    """The variables and attributes that a statement sets, or whose methods it calls, as a list's `append`."""
    for node in ast.walk(statement):
        if isinstance(getattr(node, "ctx", None), ast.Store) and not isinstance(node, ast.Tuple | ast.List):
            yield _place(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            yield from [_place(called.value)] if isinstance(called, ast.Attribute) else []


def _place(node: ast.AST) -> str:
    """The variable, or the attribute of the object (".name"), that an expression begins with; "-" for another one."""
    if name := _attribute(node):
        return f".{name}"
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) and node.id != "self" else "-"


def _head(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of the statements in it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from ast.walk(child)


def _statements(method: ast.FunctionDef) -> list[ast.stmt]:
    return [each for each in ast.walk(method) if isinstance(each, ast.stmt) and each is not method]


def _written(nodes: Sequence[ast.AST], methods: _Methods, depth: int = 2) -> set[str]:
    """The attributes that these statements write: by assignment, in place, and in methods that they call."""
    found: set[str] = set()
    for node in (part for each in nodes for part in ast.walk(each)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {attribute for target in targets if (attribute := _attribute(target))}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func.attr
            if called.endswith("_") and not called.startswith("_"):
                found |= {_attribute(node.func.value)}
            elif _attribute(node.func) == called and called in methods and depth:
                found |= _written(methods[called].body, methods, depth - 1)
    return found - {""}


def _reads(test: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Attribute) and _attribute(node) == name for node in ast.walk(test))


def _attribute(node: ast.AST) -> str:
    """The attribute of the object itself that an expression begins with: `low` of `self.low.data[0]`; empty for
    another one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return node.attr
        node = node.value
    return ""


@lru_cache(maxsize=256)
def _methods_of(kind: type) -> _Methods:
    """The methods of its classes but `__init__`, by name, each as the nearest class has it."""
    found: dict[str, ast.FunctionDef] = {}
    for each in kind.__mro__:
        if each in (nn.Module, object):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError, SyntaxError):
            continue
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        for function in functions:
            if function.name != "__init__":
                found.setdefault(function.name, function)
    return found
