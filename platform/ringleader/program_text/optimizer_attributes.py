"""Attributes that a program's own optimizer carries from step to step outside its state, by the text of its `step`, and
of the methods that this calls."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from ringleader.parsing import parse
from ringleader.program_text.calls import HARMLESS
from ringleader.program_text.statement_order import binds, parents
from ringleader.program_text.turn_paths.first_use import first

_ADDING = frozenset(("append", "appendleft", "extend", "add", "insert", "update", "clear"))
"""Methods that change a container, and tell nothing of it, where their result is dropped."""

_BESIDE = frozenset(("__init__", "__new__", "__repr__", "__str__", "__getstate__", "__setstate__"))
"""Methods that no step calls."""


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A function that a step runs, with the place of its text."""

    file: str
    begin: int
    tree: ast.FunctionDef


class StepText:
    """The text of the functions of one class that its steps run.

    Attributes:
        known: whether all of it is there.
    """

    def __init__(self, kind: type[Any]) -> None:
        self.known = True
        self.functions = list(self._reached(kind))

    @cached_property
    def read(self) -> frozenset[str]:
        """The attributes that are read for more than to change them or to show them, and texts, which may name some."""
        return frozenset(name for function in self.functions for name in _read(function.tree))

    def may_read(self, name: str) -> bool:
        """Whether a step may go on from that attribute."""
        return not self.known or name in self.read

    def carried(self) -> Iterator[tuple[str, str]]:
        """Each attribute that a function changes and reads before it has set it, with "file:line"."""
        for function in self.functions:
            for name, line in _carried(function.tree):
                if self.may_read(name):
                    place = f"{function.file.rpartition('/')[2]}:{function.begin + line - 1}"
                    yield name, place

    def made_once(self, name: str) -> bool:
        """Whether the attribute is only set where it is missing."""
        return not any(name in _set_again(function.tree.body, "") for function in self.functions)

    def _reached(self, kind: type[Any]) -> Iterator[StepFunction]:
        methods = _methods(kind)
        # An object of another kind has no `step`: whatever it has may be called. A hook is named in `__init__`.
        new = ["step"] if issubclass(kind, Optimizer) else list(methods)
        made = vars(kind).get("__init__")
        new += methods.keys() & set(made.__code__.co_names) if inspect.isfunction(made) else ()
        seen = set(new)
        while new:
            for method in methods.get(new.pop(), ()):
                function = _function(method)
                if function is None:
                    self.known = False
                    break
                yield function
                self.known &= not _gives_itself(function.tree)
                names = {n.attr for n in ast.walk(function.tree) if isinstance(n, ast.Attribute)}
                new += (names & methods.keys()) - seen
                seen |= names
                if "super" not in method.__code__.co_names:
                    break


_TEXTS: WeakKeyDictionary[type[Any], StepText] = WeakKeyDictionary()


def text_of_steps(kind: type[Any]) -> StepText:
    """The text of a class's steps, read once."""
    if kind not in _TEXTS:
        _TEXTS[kind] = StepText(kind)
    return _TEXTS[kind]


def _methods(kind: type[Any]) -> dict[str, list[Callable[..., Any]]]:
    """By name, the one that counts first: those of the program's classes, and of installed ones, but not of torch's."""
    found: dict[str, list[Callable[..., Any]]] = {}
    for each in (c for c in kind.__mro__ if c is not object and not c.__module__.startswith("torch.")):
        for name, method in vars(each).items():
            function = method.fget if isinstance(method, property) else method
            if inspect.isfunction(function) and name not in _BESIDE:
                found.setdefault(name, []).append(
                    inspect.unwrap(function)
                )  # torch puts a wrapper around `step`
    return found


def _function(method: Callable[..., Any]) -> StepFunction | None:
    try:
        lines, begin = inspect.getsourcelines(method)
        tree = parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    file = method.__code__.co_filename
    return StepFunction(file, begin, tree) if isinstance(tree, ast.FunctionDef) else None


def _gives_itself(function: ast.FunctionDef) -> bool:
    """Whether it hands itself to something whose text is not known to read no attribute."""
    kept = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Attribute)}
    calls = [
        n for n in ast.walk(function) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "super"
    ]
    kept |= {id(argument) for call in calls for argument in call.args}
    names = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == "self")
    return any(id(name) not in kept for name in names)


def _own(function: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
            yield node


def _carried(function: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """Attributes with the line that reads them."""
    attributes = list(_own(function))
    for name in dict.fromkeys(n.attr for n in attributes if isinstance(n.ctx, ast.Store)):
        added = [
            n.lineno
            for n in ast.walk(function)
            if isinstance(n, ast.AugAssign) and binds(n.target, f".{name}")
        ]
        reads = {n.lineno for n in attributes if n.attr == name and isinstance(n.ctx, ast.Load)} | set(added)
        line = first(function.body, f".{name}", reads)
        if line:
            yield name, line


def _read(function: ast.FunctionDef) -> Iterator[str]:
    around = parents(ast.walk(function))
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and not _changes(node, around):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _changes(node: ast.AST, around: dict[ast.AST, ast.AST]) -> bool:
    """Whether the attribute is only read there to change it, or to show it."""
    above = around.get(node)
    while isinstance(above, ast.Subscript) and above.value is node:
        if not isinstance(above.ctx, ast.Load):
            return True
        node, above = above, around.get(above)
    call = around.get(above) if above is not None else None
    if isinstance(above, ast.Attribute) and isinstance(call, ast.Call) and call.func is above:
        return above.attr in _ADDING and isinstance(around.get(call), ast.Expr)
    while above is not None and not isinstance(above, ast.stmt):
        name = (
            getattr(above.func, "attr", getattr(above.func, "id", "")) if isinstance(above, ast.Call) else ""
        )
        if name in HARMLESS and isinstance(around.get(above), ast.Expr):
            return True
        above = around.get(above)
    return False


def _set_again(statements: list[ast.stmt], guarded: str) -> Iterator[str]:
    """The attributes that are set elsewhere than in a branch whose condition names them."""
    for statement in statements:
        names = guarded
        if isinstance(statement, ast.If):
            names += " ".join(n.attr for n in _own(statement.test)) + " "
            names += (
                " ".join(str(n.value) for n in ast.walk(statement.test) if isinstance(n, ast.Constant)) + " "
            )
        inside = [
            block for field in ("body", "orelse", "finalbody") if (block := getattr(statement, field, None))
        ]
        for block in inside:
            yield from _set_again(block, names)
        for node in _own(statement) if not inside else ():
            if not isinstance(node.ctx, ast.Load) and node.attr not in names.split():
                yield node.attr
