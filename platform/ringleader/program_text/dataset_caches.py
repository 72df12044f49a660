"""Rows that a data set of the program keeps once it has read them, by the text of its classes.

Each worker reads rows of its own, so that such an attribute differs from worker to worker, and that does not matter:
the value kept under a row's number is what reading it again would give, unless it is drawn.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ringleader.program_text.current_line import BELOW
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import ADDS, Function

READS = frozenset({"__getitem__", "__getitems__"})
DRAWS = re.compile(
    r"torch\.(rand|normal|bernoulli|multinomial)\w*|((np|numpy)\.)?random\.(?!default_rng)[a-z]\w*"
)
"""Functions that draw from a global generator."""
SEEDS = re.compile(r"torch\.manual_seed|((np|numpy)\.)?random\.seed")


FILLS, FILLS_BY_ROW, CHANGES = "fills", "fills by row", "changes"
"""What a method does to an attribute: fills it where it was empty, fills it under a row's number without having looked,
or anything else."""


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of a class, the methods of the same object that it calls, the attributes that it changes, each with how,
    and those that a call may fill, as a buffer."""

    name: str
    calls: frozenset[str]
    changes: frozenset[tuple[str, str]]
    filled: frozenset[str]


def reads_rows(kind: type) -> bool:
    """Whether objects of that class are map-style data sets, or anything else that is read by an index."""
    return any(hasattr(kind, name) for name in READS)


@lru_cache(maxsize=256)
def kept_rows(kind: type) -> frozenset[str]:
    """The attributes in which objects of that class keep what they have read. They are changed only where an entry was
    found missing, and by the methods that read rows, under a row's number; by a value that is no constant, not drawn,
    and not made of the attribute itself. They may be emptied anywhere."""
    methods, reached = _reading(kind)
    fills = {FILLS} if reached else set()
    filled: set[str] = set()
    other: set[str] = set()
    for method in methods:
        kept = fills | ({FILLS_BY_ROW} if method.name in reached else set())
        for attribute, how in method.changes:
            (filled if how in kept else other).add(attribute)
    return frozenset(filled - other)


@lru_cache(maxsize=256)
def changed_in_reads(kind: type) -> frozenset[str]:
    """The attributes that objects of that class change, or may, when a row is read."""
    methods, reached = _reading(kind)
    return frozenset(
        attribute
        for method in methods
        if method.name in reached
        for attribute in (*(changed for changed, _ in method.changes), *method.filled)
    )


def file_of(kind: type) -> str:
    """The file that has the text of a class; empty where there is none."""
    return str(getattr(sys.modules.get(kind.__module__), "__file__", "") or "")


def _reading(kind: type) -> tuple[list[_Method], set[str]]:
    """The methods of objects of that class, and the names of those that read rows, by other methods of theirs too."""
    methods = [method for each in kind.__mro__ for method in _methods_of(each) if method.name != "__init__"]
    reached: set[str] = set()
    more = {method.name for method in methods} & READS
    while more - reached:
        reached |= more
        more = {name for method in methods if method.name in reached for name in method.calls}
    return methods, reached


def _methods_of(kind: type) -> list[_Method]:
    file = file_of(kind)
    text = text_of(file) if file and not file.startswith(BELOW) else None
    return _methods(text).get(kind.__name__, []) if text is not None else []


@lru_cache(maxsize=64)
def _methods(text: SourceText) -> dict[str, list[_Method]]:
    """The methods in a file, by class."""
    found: dict[str, list[_Method]] = defaultdict(list)
    for node in ast.walk(text.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for function in (part for part in node.body if isinstance(part, Function)):
            changes = {*_changes(function), *((attribute, CHANGES) for attribute in _drawn(function))}
            filled = frozenset(filter(None, _filled(function)))
            found[node.name].append(_Method(function.name, _calls(function), frozenset(changes), filled))
    return found


def _calls(function: ast.AST) -> frozenset[str]:
    """The names that the function takes from `self` or `super()`."""
    parts = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    above = (part.attr for part in parts if ast.unparse(part.value) == "super()")
    return frozenset((*_named(function), *above))


def _filled(function: ast.AST) -> Iterator[str]:
    """The attributes of `self` that are given to a call for its effect: `numpy.copyto(self.buffer, row)`,
    `self.buffer.copy_(row)`, `out=self.buffer`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from map(_base, (node.value.func, *node.value.args))
        elif isinstance(node, ast.keyword) and node.arg == "out":
            yield _base(node.value)


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


def _changes(function: ast.AST) -> Iterator[tuple[str, str]]:
    """The attributes of `self` that the function changes, each with how."""
    taken: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
                # `[row for row in rows if row not in self.x]` takes nothing from it.
                tests = {
                    name
                    for part in ast.walk(node.value)
                    for test in getattr(part, "ifs", ())
                    for name in _named(test)
                }
                taken[target.id].update(set(_named(node.value)) - tests)
        if isinstance(node, ast.NamedExpr):
            taken[node.target.id].update(_named(node.value))
    yield from _in_block(function, frozenset(), taken)


def _in_block(
    node: ast.AST, empty: frozenset[str], taken: Mapping[str, set[str]]
) -> Iterator[tuple[str, str]]:
    """The changes below a node. `empty`: attributes in which an entry was found missing on the way to this node;
    `taken`: attributes by the variable that was taken from them."""
    by_row = _filled_by_row(node)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield from _assigned(child, empty, taken, by_row)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            yield from _called(child, child.func, taken)
        missing = empty
        if isinstance(child, ast.If):
            missing = empty | frozenset(_missing(child.test, taken, holds=True))
            without = empty | frozenset(_missing(child.test, taken, holds=False))
            yield from _in_block(child.test, empty, taken)
            # `_in_block` walks the children of one node: a module stands for a list of statements.
            yield from _in_block(ast.Module(child.body, []), missing, taken)
            yield from _in_block(ast.Module(child.orelse, []), without, taken)
            if isinstance(child.body[-1], ast.Return | ast.Continue | ast.Raise):
                empty = without
            continue
        if isinstance(child, ast.Try):
            # `try: return self.x[row]` and a handler: what failed in the body is missing there.
            missing = empty | {name for part in child.body for name in _named(part)}
            yield from _in_block(ast.Module(child.body, []), empty, taken)
            for handler in child.handlers:
                yield from _in_block(handler, missing, taken)
            yield from _in_block(ast.Module([*child.orelse, *child.finalbody], []), empty, taken)
            continue
        yield from _in_block(child, missing, taken)


def _filled_by_row(block: ast.AST) -> set[str]:
    """The indices under which statements of the block store anything but a constant."""
    return {
        ast.unparse(target.slice)
        for statement in ast.iter_child_nodes(block)
        if isinstance(statement, ast.Assign) and not isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Subscript) and _base(target)
    }


def _assigned(
    node: ast.Assign | ast.AugAssign | ast.AnnAssign,
    empty: frozenset[str],
    taken: Mapping[str, set[str]],
    by_row: set[str],
) -> Iterator[tuple[str, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in getattr(target, "elts", [target])]
    for target in parts:
        name, value = _base(target), node.value
        if not name or value is None:
            continue
        row = target.slice if isinstance(target, ast.Subscript) else None
        if isinstance(node, ast.AugAssign):
            yield name, CHANGES
        elif row is None and _is_empty(value):
            continue
        elif name in empty and _is_read_anew(value, name):
            yield name, FILLS
        elif row is not None and _is_a_rows(row) and _is_read_anew(value, name):
            yield name, CHANGES if name in _taken_in(value, taken) else FILLS_BY_ROW
        else:
            # A mark is set beside a row that is kept: `self.rows[row] = x; self.there[row] = True`.
            marks = isinstance(value, ast.Constant) and row is not None and ast.unparse(row) in by_row
            yield name, FILLS_BY_ROW if marks else CHANGES


def _called(
    call: ast.Call, function: ast.Attribute, taken: Mapping[str, set[str]]
) -> Iterator[tuple[str, str]]:
    name = _base(function.value)
    if not name:
        return
    if function.attr == "setdefault" and len(call.args) == 2:
        yield name, FILLS if _is_read_anew(call.args[1], name) else CHANGES
    elif function.attr == "update" and len(call.args) == 1 and _by_row(call.args[0]):
        used = {*_taken_in(call.args[0], taken), *_named(call.args[0])}
        yield name, CHANGES if name in used else FILLS_BY_ROW
    elif function.attr in ADDS and call.args:
        yield name, CHANGES


def _by_row(value: ast.expr) -> bool:
    """Whether it is a dict of rows, or pairs of their numbers and them: no count."""
    match value:
        case ast.Dict(values=values):
            return not any(isinstance(each, ast.Constant) for each in values)
        case ast.DictComp(value=each):
            return not isinstance(each, ast.Constant)
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "zip"


def _is_a_rows(index: ast.expr) -> bool:
    """Whether the index may be that of a row: made of variables, and of no state of the data set."""
    return any(isinstance(node, ast.Name) for node in ast.walk(index)) and not _named(index)


def _is_empty(value: ast.expr) -> bool:
    """Whether it is None, or a container without an item."""
    match value:
        case ast.Constant(value=None) | ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(func=ast.Name(id="dict" | "list" | "set" | "OrderedDict"), args=[], keywords=[]):
            return True
    return False


def _is_read_anew(value: ast.expr, name: str) -> bool:
    """Whether the value is a row as it is read: no mark, no empty container, and nothing made of the attribute."""
    return not isinstance(value, ast.Constant) and not _is_empty(value) and name not in _named(value)


def _missing(test: ast.expr, taken: Mapping[str, set[str]], *, holds: bool) -> Iterator[str]:
    """The attributes that a test finds empty where it holds, or does not: `row not in self.x`, `self.x[row] is None`,
    `not self.x`, and the same of a variable taken from one."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _missing(operand, taken, holds=not holds)
            return
        case ast.BoolOp(op=op, values=values):
            for value in values if isinstance(op, ast.And) == holds else ():
                yield from _missing(value, taken, holds=holds)
            return
        case ast.Compare(ops=[ast.NotIn() | ast.In() as op], comparators=[looked_at]):
            empty = isinstance(op, ast.NotIn) == holds
        case ast.Compare(left=looked_at, ops=[ast.Is() | ast.IsNot() as op]):
            empty = isinstance(op, ast.Is) == holds
        case ast.Compare():
            return
        case _:
            looked_at, empty = test, not holds
    if empty:
        yield from {*_named(looked_at), *_taken_in(looked_at, taken)}


def _taken_in(node: ast.AST, taken: Mapping[str, set[str]]) -> set[str]:
    """The attributes that variables in it were taken from."""
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return {attribute for name in names for attribute in taken.get(name, ())}


def _base(target: ast.AST) -> str:
    """The attribute of `self` that is changed through this expression; empty where there is none."""
    while isinstance(target, ast.Subscript | ast.Attribute):
        if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
            return target.attr
        target = target.value
    return ""


def _named(node: ast.AST) -> list[str]:
    """The attributes of `self` in it."""
    return [
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"
    ]
