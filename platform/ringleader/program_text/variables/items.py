"""Dicts of a function that are used entry by entry, as a history of metrics: each entry is a variable of its own.

`history["train"]` differs between workers, for people; `history["val"]` decides when to stop. Only a dict that the
text fills and reads under fixed names is taken apart; where it is read as a whole, all of its entries are.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ringleader.program_text.calls import HARMLESS
from ringleader.program_text.program_scope import Definition, Function, assigned_in, name_of, parameters_of
from ringleader.program_text.statement_order import parents

_MAKERS = frozenset(["dict", "defaultdict", "OrderedDict"])
_READING = frozenset(["items", "keys", "values", "copy"])
_FUNCTIONS = frozenset(
    [
        "len",
        "dict",
        "list",
        "sorted",
        "max",
        "min",
        "sum",
        "zip",
        "print",
        "str",
        "repr",
        "dumps",
        "DataFrame",
        "deepcopy",
    ]
)


@dataclass(frozen=True, slots=True)
class DictEntry:
    """An entry that is a variable of its own in the tree.

    Attributes:
        name: that of the dict in the tree.
        entry: the text under which the entry is.
    """

    name: str
    entry: str


def name_items_apart(tree: ast.Module) -> dict[str, Mapping[str, DictEntry]]:
    """Rewrite entries as names, in place. Returns them by their new names, for each outermost function."""
    found: dict[str, Mapping[str, DictEntry]] = {}
    for top in tree.body:
        if isinstance(top, Definition):
            entries: dict[str, DictEntry] = {}
            for name in sorted(_dicts_in(top)):
                entries |= _taken_apart(top, name)
            found[top.name] = entries
    return found


def _dicts_in(top: ast.AST) -> set[str]:
    """The variables that are assigned dicts alone, whose entries have fixed names."""
    made = [(t.id, v) for n in ast.walk(top) for t, v in assigned_in(n) if isinstance(t, ast.Name)]
    functions = [node for node in ast.walk(top) if isinstance(node, Function)]
    given = {name for function in functions for name in parameters_of(function)}
    stores = [n.id for n in ast.walk(top) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    names = {name for name, value in made if _is_dict(value)} - given
    return {
        name
        for name in names
        if all(_is_dict(value) for other, value in made if other == name)
        and stores.count(name) == sum(other == name for other, _ in made)
    }


def _is_dict(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=keys):
            return all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys)
        case ast.Call(func=called, args=args, keywords=[]) if len(args) <= 1:
            called = called.value if isinstance(called, ast.Subscript) else called
            return name_of(called) in _MAKERS and (not args or name_of(called) == "defaultdict")
    return False


def _taken_apart(top: ast.AST, name: str) -> dict[str, DictEntry]:
    above = parents(ast.walk(top))
    reads = [n for n in ast.walk(top) if isinstance(n, ast.Name) and n.id == name]
    # What a closure has is looked at by the name of the whole dict.
    if len({id(_function_of(node, above)) for node in reads}) > 1:
        return {}
    reads = [node for node in reads if isinstance(node.ctx, ast.Load)]
    entries = {entry for node in reads if (entry := _entry(above.get(node), node)) is not None}
    whole = [node for node in reads if _entry(above.get(node), node) is None]
    if not entries or not all(_only_reads(node, above) for node in whole):
        return {}
    for node in ast.walk(top):
        for _, value in assigned_in(node):
            entries |= set(_entries_in_order(value)) if _is_assigned_to(node, name) else set()
    names = {entry: f"{name}[{entry!r}]" for entry in sorted(entries)}
    _Rewriting(name, names).visit(top)
    return {new: DictEntry(name, entry) for entry, new in names.items()}


def _function_of(node: ast.AST, above: Mapping[ast.AST, ast.AST]) -> ast.AST | None:
    outer = above.get(node)
    while outer is not None and not isinstance(outer, Function | ast.Lambda):
        outer = above.get(outer)
    return outer


def _entry(outer: ast.AST | None, node: ast.AST) -> str | None:
    match outer:
        case ast.Subscript(value=value, slice=ast.Constant(str() as entry)) if value is node:
            return entry
    return None


def _is_assigned_to(node: ast.AST, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target, _ in assigned_in(node))


def _only_reads(node: ast.AST, above: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether what is done with the whole dict leaves it as it is."""
    outer = above.get(node)
    match outer:
        case ast.Attribute(attr=method):
            return method in _READING and isinstance(above.get(outer), ast.Call)
        case ast.Call(func=called):
            return name_of(called) in HARMLESS | _FUNCTIONS
        case ast.Return() | ast.FormattedValue() | ast.Dict():
            return True
    return False


class _Rewriting(ast.NodeTransformer):
    def __init__(self, name: str, names: Mapping[str, str]) -> None:
        self._name = name
        self._names = names

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        entry = _entry(node, node.value)
        if isinstance(node.value, ast.Name) and node.value.id == self._name and entry is not None:
            return ast.copy_location(ast.Name(self._names[entry], node.ctx), node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id != self._name or not isinstance(node.ctx, ast.Load):
            return node
        values: list[ast.expr] = [
            ast.copy_location(ast.Name(new, ast.Load()), node) for new in self._names.values()
        ]
        keys: list[ast.expr | None] = [ast.copy_location(ast.Constant(entry), node) for entry in self._names]
        return ast.copy_location(ast.Dict(keys, values), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST]:
        return [self.generic_visit(node), *self._made(node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | list[ast.AST]:
        return [self.generic_visit(node), *self._made(node)]

    def _made(self, node: ast.stmt) -> Iterator[ast.AST]:
        """The assignments of the entries, beside that of the dict."""
        for target, value in assigned_in(node):
            if not (isinstance(target, ast.Name) and target.id == self._name):
                continue
            given = dict(zip(_entries_in_order(value), getattr(value, "values", ()), strict=False))
            filled: ast.expr = ast.Constant(None)
            if isinstance(value, ast.Call) and value.args:  # a defaultdict
                filled = ast.Call(value.args[0], [], [])
            for entry, new in self._names.items():
                its = given.get(entry, filled)
                yield ast.copy_location(
                    ast.Assign(
                        [ast.copy_location(ast.Name(new, ast.Store()), node)], ast.copy_location(its, node)
                    ),
                    node,
                )


def _entries_in_order(value: ast.expr) -> list[str]:
    keys = value.keys if isinstance(value, ast.Dict) else []
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
