"""What turns collect for lines behind their loop: they go on from what was there before, or leave it somewhere else.

`losses.append(loss.item())` and the mean of `losses`, `self.outputs`, a meter's average. Behind no turn at all such
lines raise: they divide by zero, or stack nothing.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from ringleader.program_text.program_scope import (
    ADDS,
    CONTAINERS,
    OF_COMPREHENSION,
    Function,
    assigned_in,
    name_of,
    parameters_of,
    variables_of,
)
from ringleader.program_text.statement_order import COMPREHENSIONS, Loop, given, span

NEXT = "__next__"
_ADDS = ADDS | {"setdefault"}
_TORCHS = frozenset(["data", "grad", "param_groups", "requires_grad", "training"])
"""Attributes of torch's own: what a turn sets there is put back, or counts in other ways."""
_OF_NEW_OBJECTS = frozenset(["__init__", "__post_init__", "__new__"])
_OF_GRADIENTS = "ctx"
"""What a `torch.autograd.Function` keeps from its forward for its backward."""


class _Change(NamedTuple):
    """A place that a turn changes: a name, an item or an attribute; `adds` where a method of what is there does."""

    place: ast.expr
    adds: bool


@dataclass(frozen=True)
class TurnLines:
    """The lines of one function that turns run: the body of a loop, or of a function that they call.

    Attributes:
        around: the function; the file's tree for a loop outside of all functions.
        begin: what each turn is given.
        body: the statements.
        imported: the names that the file's imports bind.
    """

    around: ast.AST
    begin: Sequence[ast.AST]
    body: Sequence[ast.AST]
    imported: Collection[str] = ()

    @cached_property
    def left(self) -> frozenset[str]:
        """The names that a turn sets and that other lines of the function read or delete."""
        nodes = [node for each in (*self.begin, *self.body) for node in ast.walk(each)]
        bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return frozenset(name for name in bound & self._used_outside if OF_COMPREHENSION not in name)

    @cached_property
    def collects(self) -> bool:
        """Whether a turn changes what is there before it, and not for itself alone."""
        # What a new object is given was nobody's before.
        if getattr(self.around, "name", "") in _OF_NEW_OBJECTS:
            return False
        return any(map(self._stays, _changes(self.body, self.imported)))

    @cached_property
    def _used_outside(self) -> set[str]:
        inside = {id(node) for each in (*self.begin, *self.body) for node in ast.walk(each)}
        outside = (node for node in ast.walk(self.around) if id(node) not in inside)
        return {n.id for n in outside if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)}

    @cached_property
    def _set(self) -> dict[str, list[ast.expr | None]]:
        """The values that a turn sets names to; None where the text does not show one."""
        found: dict[str, list[ast.expr | None]] = {}
        nodes = [node for each in self.body for node in ast.walk(each)]
        for target, value in (pair for node in nodes for pair in assigned_in(node)):
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    found.setdefault(name.id, []).extend([] if _reads(value, name.id) else [value])
        known = {id(n) for node in nodes for target, _ in assigned_in(node) for n in ast.walk(target)}
        known |= {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in known:
                found.setdefault(node.id, []).append(None)
        return {name: values for name, values in found.items() if values}

    @cached_property
    def _given(self) -> set[str]:
        return {n.id for each in self.begin for n in ast.walk(each) if isinstance(n, ast.Name)}

    @cached_property
    def _elsewhere(self) -> set[str]:
        """The names of the function that it declares to be another one's."""
        nodes = (node for node in ast.walk(self.around) if isinstance(node, ast.Nonlocal | ast.Global))
        return {name for node in nodes for name in node.names}

    def _stays(self, change: _Change) -> bool:
        base, attributes = _way(change.place)
        if attributes & _TORCHS:
            return False
        if not isinstance(base, ast.Name):
            return bool(attributes)
        name = base.id
        if name in self._given or name == _OF_GRADIENTS:
            return False
        if base is change.place and not change.adds:
            return name in self._elsewhere or (name not in self._set and name in self._used_outside)
        if name in self._set:
            return not all(self._is_new(value, adds=change.adds) for value in self._set[name])
        return not self._is_own(name) or name in self._used_outside

    def _is_own(self, name: str) -> bool:
        """Whether the name is a variable that each call of the function has anew."""
        around = self.around
        return isinstance(around, Function) and name in variables_of(around) - parameters_of(around)

    def _is_new(self, value: ast.expr | None, *, adds: bool) -> bool:
        """Whether a value is made in the turn: what a call gives may be one that stays, a meter by its name. Items and
        attributes are mostly set in tensors and in results."""
        if isinstance(value, ast.Call):
            return not adds or name_of(value.func) in CONTAINERS
        if isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
            return name_of(_way(value)[0]) in self._given
        return value is not None


def lines_taking(tree: ast.Module, line: int, imported: Collection[str]) -> TurnLines | None:
    """The lines that a turn runs where batches are taken in that line: those of the loop that begins there, or goes on
    by `next`, or of the `__next__` there; None where there is no such loop."""
    around = function_around(tree, line)
    loops = [node for node in ast.walk(tree) if isinstance(node, Loop) and line in _lines_taking(node)]
    inner = max(loops, key=lambda loop: loop.lineno, default=None)
    if inner is not None:
        return TurnLines(around, given(inner), inner.body, imported)
    if isinstance(around, Function) and around.name == NEXT:
        return TurnLines(around, (), around.body, imported)
    return None


def function_around(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function around that line; the tree where there is none."""
    functions = [n for n in ast.walk(tree) if isinstance(n, Function) and span(n)[0] <= line <= span(n)[1]]
    return max(functions, key=lambda each: each.lineno, default=tree)


def keeps_results(tree: ast.Module, line: int) -> bool:
    """Whether an expression in that line makes values of the batches, as a comprehension does."""
    return any(
        span(node)[0] <= line <= span(node)[1]
        for node in ast.walk(tree)
        if isinstance(node, COMPREHENSIONS) or (isinstance(node, ast.Call) and name_of(node.func) == "map")
    )


def hooks_in(tops: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """What the program gives to models as hooks of their forward."""
    for node in (node for top in tops for node in ast.walk(top)):
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            if name.startswith("register") and "forward" in name:
                yield from node.args


def _lines_taking(loop: Loop) -> Collection[int]:
    """The lines in which a loop takes its next batch."""
    header = loop.test if isinstance(loop, ast.While) else loop.iter
    lines = set(range(loop.lineno, (header.end_lineno or loop.lineno) + 1))
    calls = (n for n in ast.walk(loop) if isinstance(n, ast.Call) and name_of(n.func) == "next")
    return lines | {each.lineno for each in calls} if isinstance(loop, ast.While) else lines


def _changes(statements: Iterable[ast.AST], imported: Collection[str]) -> Iterator[_Change]:
    said: set[int] = set()
    for node in (node for statement in statements for node in ast.walk(statement)):
        match node:
            case ast.Expr(value=value) | ast.Lambda(body=value):
                said.update(id(each) for each in (value, getattr(value, "elt", value)))
            case ast.AugAssign(target=ast.Name() as target):
                yield _Change(target, adds=False)
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                yield _Change(node, adds=False)
            case ast.Call(func=ast.Name("setattr"), args=[owner, *_]):
                yield _Change(ast.Attribute(owner, "", ast.Store()), adds=False)
            case ast.Call(func=ast.Attribute(value=place, attr=method)) if method in _ADDS:
                # `x.add(y)` of a tensor gives another tensor, and `np.append` another array: nothing stays.
                base, _ = _way(place)
                makes = hasattr(torch.Tensor, method) or name_of(base) in imported
                given_some = bool(node.args or node.keywords) and name_of(place) != "session"
                if given_some and (id(node) in said or not makes):
                    yield _Change(place, adds=True)
        for to, value in assigned_in(node):
            for name in ast.walk(to):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and _reads(value, name.id):
                    yield _Change(name, adds=False)


def _way(place: ast.AST) -> tuple[ast.expr, set[str]]:
    """What a place is in at last, and the attributes on the way to it."""
    attributes: set[str] = set()
    while True:
        match place:
            case ast.Attribute(value=value, attr=attribute):
                attributes.add(attribute)
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Call(func=value):
                pass
            case _:
                assert isinstance(place, ast.expr)
                return place, attributes
        place = value


def _reads(value: ast.expr, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(value))
