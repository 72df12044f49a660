"""The entrypoint looked up in the working directory: its file is parsed and never imported."""

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.errors import SpecInvalid
from ringleader.parsing import parse
from ringleader.spec.job import JobSpec

MOST_NAMED = 10
OPEN_ENDED = frozenset({"globals", "vars", "exec", "eval", "setattr"})
"""A module that calls one of these may have names that its text does not tell."""


@dataclass(slots=True)
class _Names:
    """What a module's text defines at its top; `open` where it may have more."""

    functions: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)
    open: bool = False


def check_entrypoint(spec: JobSpec, folder: Path) -> None:
    """Whether the function is in the module's file, where that lies in the working directory `folder`. A module that
    is not there may be installed on the nodes.

    Raises:
        SpecInvalid: it is not, or the file is no Python; names the functions that are there.
    """
    module, _, name = spec.entrypoint.partition(":")
    path = _file_of(module, [folder, *python_path(spec.env, folder)])
    if path is None:
        return
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    try:
        names = _names(parse(path.read_bytes()))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _refusal(
            spec, f"{shown}{line} is no Python {version}: {why}", "a module that can be imported"
        ) from None
    if names.open or name in names.others or name in names.functions:
        return
    known = ", ".join(names.functions[:MOST_NAMED])
    more = f" and {len(names.functions) - MOST_NAMED} more" if len(names.functions) > MOST_NAMED else ""
    raise _refusal(
        spec, f"{shown} has no function {name!r}; it has {known or 'none'}{more}", f"{module}:function"
    )


def python_path(env: dict[str, str], folder: Path) -> list[Path]:
    """The folders that `PYTHONPATH` of a job file names, where the working directory is `folder`: from there they are
    imported, behind what lies in it and before what is installed."""
    return [folder / part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]


def _file_of(module: str, roots: list[Path]) -> Path | None:
    """The first one that an import would find; None where it is no file of source."""
    below = Path(*module.split("."))
    for root in roots:
        for path in (root / below / "__init__.py", root / below.with_suffix(".py")):
            if path.is_file():
                return path
    return None


def _names(module: ast.Module) -> _Names:
    found = _Names()
    for statement in _at_the_top(module.body):
        _define(statement, found)
    for node in ast.walk(module):
        if isinstance(node, ast.Global):
            found.others |= set(node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OPEN_ENDED:
            found.open = True
    found.open = found.open or "__getattr__" in found.functions
    return found


def _at_the_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, those inside of others too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _at_the_top(getattr(statement, part, []))
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _at_the_top(part.body)


def _define(statement: ast.stmt, found: _Names) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        found.functions.append(statement.name)
        return
    if isinstance(statement, ast.ClassDef):
        found.others.add(statement.name)
        return
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            found.open = found.open or alias.name == "*"
            found.others.add((alias.asname or alias.name).partition(".")[0])
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.others.add(node.id)


def _refusal(spec: JobSpec, message: str, allowed: str) -> SpecInvalid:
    message = f"{message}; allowed: {allowed}"
    return SpecInvalid(
        [{"pointer": "/entrypoint", "value": spec.entrypoint, "allowed": allowed, "message": message}]
    )
