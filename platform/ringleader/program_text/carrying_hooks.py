"""Variables that a hook carries from one call to the next, by its text: it goes on from what an earlier call left.

A hook runs in each forward or backward, so once a turn: what it carries depends on who computes what. What it only
leaves for the loss, and what it counts for itself, does not matter.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from ringleader.program_text.current_line import BELOW
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.program_scope import ADDS, Key
from ringleader.program_text.turn_paths.first_use import first

_ANEW = frozenset(["copy_", "fill_", "zero_"])
"""Methods that change a tensor in place and leave nothing of what it was."""
_AS_IT_IS = frozenset(["detach_", "requires_grad_"])
"""Methods whose name ends like one that changes a value."""

_SHAPES = frozenset(["shape", "dtype", "device", "ndim"])
_SIZES = frozenset(["dim", "numel", "size"])
_MADE_OF_SHAPES = frozenset(
    ["arange", "eye", "float", "full", "int", "linspace", "ones", "sqrt", "to", "tril", "triu", "zeros"]
)
_MODULES = frozenset(["math", "np", "torch"])


def carried_by(hook: Callable[..., Any]) -> tuple[tuple[str, int], ...]:
    """The names of the variables around a hook, or of attributes of its object (".name"), each with a line that changes
    it."""
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    return () if code is None or code.co_filename.startswith(BELOW) else _carried(code)


def moved_by(hook: Callable[..., Any]) -> Mapping[str, bool]:
    """The variables around a hook that it changes, by name (or ".name"), each with whether it moves them on from what
    they were, as a running mean: in place, by an operator, or by an expression of their own old value."""
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    return {} if code is None or code.co_filename.startswith(BELOW) else _moved(code)


@lru_cache(maxsize=256)
def read_as_left(code: CodeType) -> tuple[tuple[str, Key, int], ...]:
    """The names around a function, and of its parameters, whose values a call may find as an earlier one left them,
    with their keys and a line that reads them. A value that is set once, as a table, is none."""
    text, function = text_of(code.co_filename), _definition(code)
    if text is None or function is None:
        return ()
    scope, span = text.scope_at(function.lineno), range(function.lineno, (function.end_lineno or 0) + 1)
    names = {*code.co_freevars, *code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    # `co_names` has attributes and imported modules too: only globals that some line sets may be left over.
    names |= set(code.co_names) & text.changing_globals
    reads = _Reads(function, names)
    found = []
    for name in names:
        key = scope.key(name)
        # A read that goes into the variable itself, as in a running mean, matters only where another one follows.
        lines = {load.line for load in text.flows.loads if load.key == key != load.into and load.line in span}
        line = first(function.body, name, lines)
        if line and not reads.set_once(name) and (name not in reads.written or reads.goes_on(name)):
            found.append((name, key, line))
    return tuple(found)


def _definition(code: CodeType) -> ast.FunctionDef | None:
    text = text_of(code.co_filename)
    nodes = ast.walk(text.tree) if text is not None and text.tree is not None else ()
    return next(
        (n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == code.co_name and _is_at(n, code)),
        None,
    )


@lru_cache(maxsize=256)
def _carried(code: CodeType) -> tuple[tuple[str, int], ...]:
    text, function = text_of(code.co_filename), _definition(code)
    if text is None or function is None:
        return ()
    around = set(code.co_freevars) | set(code.co_names)
    reads = _Reads(function, around)
    scope = text.scope_at(function.lineno)
    keys = {name: ("", name) if name.startswith(".") else scope.key(name) for name in reads.written}
    return tuple(
        (name, line)
        for name, line in reads.written.items()
        if reads.goes_on(name)
        and not reads.set_once(name)
        and keys[name] not in text.tables
        and text.flows.may_matter(keys[name])
    )


@lru_cache(maxsize=256)
def _moved(code: CodeType) -> Mapping[str, bool]:
    function = _definition(code)
    if function is None:
        return {}
    reads = _Reads(function, set(code.co_freevars) | set(code.co_names))
    return {name: name in reads.moved for name in reads.written}


def _is_at(function: ast.FunctionDef, code: CodeType) -> bool:
    # Python gives the code of a decorated function the line of its first decorator.
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    return first == code.co_firstlineno


class _Reads:
    """What the statements of a hook do with variables from around it.

    Attributes:
        written: a line that changes it, by variable.
        moved: those that a statement makes of what they were.
    """

    def __init__(self, function: ast.FunctionDef, around: set[str]) -> None:
        self.written: dict[str, int] = {}
        self.moved: set[str] = set()
        self._body = function.body
        stored = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        # A parameter that is set anew is no longer what the hook was given, whichever line asks.
        self._given = {each.arg for each in (*function.args.posonlyargs, *function.args.args)} - stored
        self._around = around
        self._read: dict[str, int] = {}
        self._extended: set[str] = set()
        self._look(function.body)

    def goes_on(self, name: str) -> bool:
        """Whether a call reads what an earlier one has left."""
        read = self._read.get(name)
        # Read above the line that sets it: at that moment it holds what the call before this one has set.
        return read is not None and (name in self._extended or read < self.written[name])

    def set_once(self, name: str) -> bool:
        """Whether each call finds the same in it, as in a mask made at the first one: what sets it reads no values and
        stands under a test of itself, before all that reads it, and operators alone read it: they change nothing."""
        sets = [statement for statement in self._body if self._sets(statement, name)]
        others = [statement for statement in self._body if statement not in sets]
        # One that is read above its test would find it unset in the first call, and set in each later one.
        before = self._body[: self._body.index(sets[-1])] if sets else []
        return (
            bool(sets)
            and not any(name in self._names(each) for each in before if each not in sets)
            and not any(name in self._changed(each) for each in others)
            and all(self._is_operand(name, each) for each in others)
        )

    def _sets(self, statement: ast.stmt, name: str) -> bool:
        """Whether it is an `if` that only sets the variable, by its own value and by shapes."""
        return (
            isinstance(statement, ast.If)
            and not statement.orelse
            and self._is_of_shapes(statement.test, name)
            and all(
                isinstance(each, ast.Assign)
                and self._is_of_shapes(each.value)
                and all(self._name(target) == name and self._has_shapes(target) for target in each.targets)
                for each in statement.body
            )
        )

    def _has_shapes(self, target: ast.expr) -> bool:
        """Whether the keys of what is set are made of shapes and constants."""
        return not isinstance(target, ast.Subscript) or (
            self._is_of_shapes(target.slice) and self._has_shapes(target.value)
        )

    def _is_of_shapes(self, node: ast.AST, own: str = "") -> bool:
        """Whether an expression reads nothing of values but their shape, type and device, and `own`."""
        if isinstance(node, ast.Call):
            called, inside = node.func, [*node.args, *(each.value for each in node.keywords)]
            if isinstance(called, ast.Attribute) and not (
                called.attr in _SIZES and self._is_given(called.value)
            ):
                inside.append(called.value)
            known = getattr(called, "attr", getattr(called, "id", "")) in _SIZES | _MADE_OF_SHAPES
            return known and all(self._is_of_shapes(each, own) for each in inside)
        if isinstance(node, ast.Name | ast.Attribute) and own and self._root(node) == own:
            return True
        if isinstance(node, ast.Name):
            return node.id in _MODULES
        if isinstance(node, ast.Attribute) and node.attr in _SHAPES and self._is_given(node.value):
            return True
        return not isinstance(node, ast.Lambda | ast.NamedExpr | ast.Dict | ast.List) and all(
            self._is_of_shapes(each, own) for each in ast.iter_child_nodes(node)
        )

    def _is_given(self, node: ast.AST) -> bool:
        """Whether it is what the hook was given, or a part of it: shapes of what it picks by values follow these."""
        while isinstance(node, ast.Attribute) or (
            isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        ):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._given

    def _is_operand(self, name: str, statement: ast.AST) -> bool:
        """Whether all that reads the variable there, or an entry of it, are operators."""
        return all(
            isinstance(parent, ast.BinOp | ast.UnaryOp | ast.Compare)
            for parent in ast.walk(statement)
            for child in ast.iter_child_nodes(parent)
            if not (isinstance(parent, ast.Subscript) and child is parent.value)
            and self._root(_base(child)) == name
        )

    def _look(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            inside = [
                child for block in ("body", "orelse", "finalbody") for child in getattr(statement, block, [])
            ]
            if inside and not isinstance(statement, ast.FunctionDef):
                heads = [child for child in ast.iter_child_nodes(statement) if child not in inside]
                only = {name for child in inside for name in self._changed(child)}
                for name in {name for head in heads for name in self._names(head)}:
                    # `if key not in means: means[key] = …` is read for itself.
                    self._note(name, statement.lineno, own=only == {name})
                self._look(inside)
            else:
                changed = set(self._changed(statement))
                for name in self._names(statement):
                    self._note(name, statement.lineno, own=name in changed)
                for name in changed:
                    self.written.setdefault(name, statement.lineno)

    def _note(self, name: str, line: int, *, own: bool) -> None:
        if own:
            self._extended.add(name)
        else:
            self._read.setdefault(name, line)

    def _changed(self, statement: ast.AST) -> Iterator[str]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if name := self._name(target):
                        if isinstance(node, ast.AugAssign) or _is_made_of_itself(target, node.value):
                            self.moved.add(name)
                        yield name
                if isinstance(node, ast.AugAssign) and (name := self._name(node.target)):
                    self._extended.add(name)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called, name = node.func.attr, self._name(node.func.value)
                if name and ((called.endswith("_") and not called.startswith("_")) or called in ADDS):
                    if called not in _ANEW:
                        self._extended.add(name)
                    # An entry more in a list is no running mean: the entries that are there stay as they are.
                    if called not in _ANEW | _AS_IT_IS | ADDS:
                        self.moved.add(name)
                    yield name

    def _names(self, node: ast.AST) -> Iterator[str]:
        """The variables that are read there, but for where they only hold what is changed."""
        # `means[key] = x` loads `means` for the parser, and reads nothing of it.
        holders = {id(place) for each in ast.walk(node) for place in _holders(each)}
        for each in ast.walk(node):
            loads = isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load)
            if loads and id(each) not in holders and (name := self._root(each)):
                yield name

    def _name(self, node: ast.AST) -> str:
        return self._root(_base(node))

    def _root(self, node: ast.AST) -> str:
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
            return f".{node.attr}"
        return node.id if isinstance(node, ast.Name) and node.id in self._around else ""


def _is_made_of_itself(target: ast.expr, value: ast.expr | None) -> bool:
    """Whether an assigned expression reads the very place that it is assigned to: `m["a"]`, or `m.get("a", 0)`."""
    place, read = ast.unparse(target), [] if value is None else list(ast.walk(value))
    if any(isinstance(each, ast.expr) and ast.unparse(each) == place for each in read):
        return True
    return isinstance(target, ast.Subscript) and any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == "get"
        and ast.unparse(each.func.value) == ast.unparse(target.value)
        for each in read
    )


def _holders(node: ast.AST) -> Iterator[ast.AST]:
    """The names under what a statement changes: of a target, and of a method that changes its object."""
    places: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        places = node.targets if isinstance(node, ast.Assign) else [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        places = [node.value.func.value] if isinstance(node.value.func, ast.Attribute) else []
    yield from map(_base, places)


def _base(place: ast.AST) -> ast.AST:
    while isinstance(place, ast.Subscript):
        place = place.value
    return place
