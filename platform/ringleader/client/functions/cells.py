"""A function of a notebook, with all that it uses, as the text of a module: definitions as they were written, values
as they are now. Nothing is left out: what cannot be written down is named."""

import __future__

import ast
import builtins
import dis
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ringleader.client.values import source_of
from ringleader.parsing import parse

_MISSING = object()
_OWN = ("__name__", "__module__", "__qualname__", "__annotations__", "__class__")
"""Names that Python itself sets where a definition runs."""


@dataclass(slots=True)
class _Written:
    """The parts of the module that are written so far, by name.

    Attributes:
        lazy: annotations are text (`from __future__ import annotations`).
        early, late: names that a definition needs when it is run, and when it is called.
    """

    lazy: bool

    imports: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    early: dict[str, list[str]] = field(default_factory=dict)
    late: dict[str, list[str]] = field(default_factory=dict)
    unpackable: list[str] = field(default_factory=list)


def module_of_cells(name: str, namespace: dict[str, Any]) -> tuple[str, list[str], list[str]]:
    """The module that defines `name` of a notebook.

    Args:
        namespace: the notebook's, with the texts of its cells in `In`.

    Returns:
        Its text; the modules that it imports; what it needs and cannot be packed, in words.
    """
    cells = [cell for cell in namespace.get("In", []) if isinstance(cell, str)]
    trees = [tree for cell in cells if (tree := _parsed(cell)) is not None]
    written, todo, seen = _Written(lazy=any(map(_has_future, trees))), [(name, name)], {name}
    while todo:
        wanted, user = todo.pop(0)
        for other in _write(wanted, user, namespace, trees, written):
            if other not in seen:
                seen.add(other)
                todo.append((other, wanted))
    future = ["from __future__ import annotations\n"] if written.lazy else []
    values = [f"{key} = {value}" for key, value in written.values.items()]
    definitions = [written.definitions[key] for key in _in_order(written)]
    text = "\n".join([*future, *written.imports.values(), "", *values, "", *definitions]) + "\n"
    return text, written.modules, written.unpackable


def _write(
    name: str, user: str, namespace: dict[str, Any], trees: list[ast.Module], written: _Written
) -> list[str]:
    """Write `name` down; returns what it uses in turn."""
    if name not in namespace:
        if not hasattr(builtins, name):
            written.unpackable.append(f"{user!r} uses {name!r}, which is not defined")
        return []
    value = namespace[name]
    if (line := _import_of(name, value, trees)) is not None:
        written.imports[name], module = line
        written.modules.append(module)
        return []
    if (made := source_of(value)) is not None:
        written.values[name] = made.text
        written.imports.update(made.imports)
        return []
    source = _source_of(name, value, trees)
    if source is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        written.unpackable.append(f"{user!r} uses {name!r}, a value of type {kind}")
        return []
    written.definitions[name] = source
    early, late = _used(source, name, lazy=written.lazy)
    written.early[name], written.late[name] = early, late
    return [*early, *late]


def _parsed(cell: str) -> ast.Module | None:
    """Parse a cell; None where it is no Python, as a cell of another language."""
    # IPython's magics, shell lines and help; the rest of such a cell is plain Python.
    python = "\n".join(line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!", "?")))
    for text in (cell, python):
        with suppress(SyntaxError, ValueError):
            return parse(text)
    return None


def _has_future(tree: ast.Module) -> bool:
    found = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(alias.name == "annotations" for node in found for alias in node.names)


def _import_of(name: str, value: Any, trees: list[ast.Module]) -> tuple[str, str] | None:
    """The line that imports the value, and its module: as a cell has it, else by the origin that the value names."""
    # The newest cell first: it may have given the name another meaning.
    for tree in reversed(trees):
        for node in reversed(list(ast.walk(tree))):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module in sys.modules:
                for alias in node.names:
                    given = name if alias.name == "*" else alias.name
                    # Only where it still is the value: a later cell may have given the name another one.
                    if (alias.asname or given) == name and _is_there(node.module, given, value):
                        return f"from {node.module} import {given} as {name}", node.module
    if isinstance(value, ModuleType) and value.__name__ != "__main__":
        if value.__name__ != name:
            return f"import {value.__name__} as {name}", value.__name__
        below = {
            alias.name
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.asname is None and alias.name.startswith(f"{name}.")
        }
        return "\n".join(f"import {module}" for module in (name, *sorted(below))), name
    module, given = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if callable(value) and module not in (None, "__main__") and _is_there(module, str(given), value):
        return f"from {module} import {given} as {name}", module
    return None


def _is_there(module: str, name: str, value: Any) -> bool:
    return getattr(sys.modules.get(module), name, _MISSING) is value


def _source_of(name: str, value: Any, trees: list[ast.Module]) -> str | None:
    """The definition as it was written: of a function by its code, of a class the newest of that name."""
    # Below its decorators: their wrappers are functions of other modules, and what the cell wrote is in there.
    function = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if inspect.isfunction(function) and function.__module__ == "__main__":
        if function.__qualname__ == "<lambda>":
            return _lambda_of(name, function, trees)
        # Made inside another function: what it closes over stands in no cell.
        if function.__closure__ or "<" in function.__qualname__:
            return None
        try:
            return textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError):
            return None
    if isinstance(value, type) and value.__module__ == "__main__" and value.__qualname__ == name:
        for tree in reversed(trees):
            for node in reversed(list(ast.walk(tree))):
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return ast.unparse(node)
    return None


def _lambda_of(name: str, function: FunctionType, trees: list[ast.Module]) -> str | None:
    """`name = lambda …` of the newest cell that says so, where this is what the name still means."""
    for tree in reversed(trees):
        for node in reversed(tree.body):
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)):
                continue
            if [target.id for target in node.targets if isinstance(target, ast.Name)] == [name]:
                text = f"{name} = {ast.unparse(node.value)}"
                made = [part for part, _ in _codes(compile(text, f"<{name}>", "exec"), late=False)]
                # By what they do: `ast.unparse` has given the text other lines, so positions cannot be compared.
                now = [part for part, _ in _codes(function.__code__, late=True)]
                return text if [*map(_does, made[1:])] == [*map(_does, now)] else None
    return None


def _does(code: CodeType) -> tuple[Any, ...]:
    """The parts of a code object that tell it from others, wherever it stands."""
    constants = [repr(part) for part in code.co_consts if not isinstance(part, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, constants


def _used(source: str, name: str, *, lazy: bool) -> tuple[list[str], list[str]]:
    """Global names that a definition uses when it is run, and those that it uses when it is called."""
    flags = __future__.annotations.compiler_flag if lazy else 0
    # dont_inherit: the futures that this file imports are not those of the cells.
    parts = list(_codes(compile(source, f"<{name}>", "exec", flags=flags, dont_inherit=True), late=False))
    made = {name, *_OWN}.union(*(_names(part, {"STORE_GLOBAL"}) for part, _ in parts))
    used: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for part, late in parts:
        here = _names(part, {"STORE_NAME"})  # of a class's body: what it has made itself
        used[late] |= dict.fromkeys(
            n for n in _names(part, {"LOAD_GLOBAL", "LOAD_NAME"}) if n not in (*made, *here)
        )
    return list(used[False]), list(used[True])


def _names(part: CodeType, operations: set[str]) -> list[str]:
    return [str(ins.argval) for ins in dis.get_instructions(part) if ins.opname in operations]


def _codes(code: CodeType, *, late: bool) -> Iterator[tuple[CodeType, bool]]:
    """The code and all code inside it, each with whether it runs only once something is called."""
    yield code, late
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            function = bool(constant.co_flags & inspect.CO_OPTIMIZED)
            # Comprehensions are functions to the compiler (until Python 3.12), but run where they stand.
            at_once = not function or constant.co_name in (
                "<listcomp>",
                "<setcomp>",
                "<dictcomp>",
                "<genexpr>",
            )
            yield from _codes(constant, late=late or not at_once)


def _in_order(written: _Written) -> list[str]:
    """Each definition behind those that it needs when it is run, with what these need when they are called."""
    order: list[str] = []
    placed: set[str] = set()
    followed: set[str] = set()

    def place(name: str) -> None:
        if name in written.definitions and name not in placed:
            placed.add(name)
            for other in written.early[name]:
                follow(other)
            order.append(name)

    def follow(name: str) -> None:
        if name in written.definitions and name not in followed:
            followed.add(name)
            place(name)
            for other in written.late[name]:
                follow(other)

    for name in reversed(written.definitions):
        place(name)
    return order
