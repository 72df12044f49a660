"""Public classes and functions: signatures as the code has them, with their docstrings."""

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from reference.docstrings import as_markdown
from reference.markdown import block
from reference.sources import Module, modules

Function = ast.FunctionDef | ast.AsyncFunctionDef
WIDTH = 96


def described(thing: type[Any] | Callable[..., Any]) -> str:
    """A class with its public members, or a function, below a heading of its own."""
    node = _definition(thing)
    if not isinstance(node, ast.ClassDef):
        return _function(node, node.name, 2)
    # A base of the package is a part of the class, in a file of its own: its members are the class's.
    ours = isinstance(thing, type) and not issubclass(thing, Exception)
    parts = [base for base in inspect.getmro(thing)[1:] if base.__module__ in modules()] if ours else []
    return _class(node, [_definition(part) for part in parts])


def members_of(thing: type[Any]) -> list[str]:
    """The public names of a class, in the order of its source."""
    node = _definition(thing)
    assert isinstance(node, ast.ClassDef)
    return [member.name for member in _methods(node)]


def _definition(thing: type[Any] | Callable[..., Any]) -> ast.ClassDef | Function:
    # `contextmanager` wraps what it decorates; the source is that of the function inside.
    module: Module = modules()[inspect.unwrap(thing).__module__]
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == thing.__name__:
            return node
    raise LookupError(f"{thing} is not defined at the top of {module.file}")


def _class(node: ast.ClassDef, parts: Sequence[ast.AST]) -> str:
    inside = {part.name for part in parts if isinstance(part, ast.ClassDef)}
    bases = [name for base in node.bases if (name := ast.unparse(base)) not in inside]
    init = next(
        (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None
    )
    head = f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"
    if init is not None and node.name not in MADE_BY_OTHERS:
        head = _call(node.name, init.args, None, method=True)
    fields = "\n".join(f"    {ast.unparse(one)}" for one in _fields(node))
    told = [f"## {node.name}", block(head + (f":\n{fields}" if fields else ""))]
    if words := ast.get_docstring(node):
        told.append(as_markdown(words))
    # `session.step` as programs have it, which is also the heading's anchor.
    members = [
        member for each in (node, *parts) if isinstance(each, ast.ClassDef) for member in _methods(each)
    ]
    told += [_function(member, f"{node.name.lower()}.{member.name}", 3) for member in members]
    return "\n\n".join(told)


MADE_BY_OTHERS = frozenset({"Session", "Job", "JobFailed"})
"""Classes that a user is given: how they are made says nothing to them."""


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    for member in node.body:
        # Class methods make records of what came over the wire: users are given them.
        ours = isinstance(member, Function) and "classmethod" in map(ast.unparse, member.decorator_list)
        if isinstance(member, Function) and not member.name.startswith("_") and not ours:
            yield member


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            yield member


def _function(node: Function, name: str, level: int) -> str:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returns = ast.unparse(node.returns) if node.returns is not None else None
    short = name.rpartition(".")[2]
    if "property" in decorators:
        shown = f"{short}: {returns}"
    else:
        method = "." in name and "staticmethod" not in decorators
        shown = _call(short, node.args, None if returns == "None" else returns, method=method)
    words = as_markdown(ast.get_docstring(node) or "")
    return "\n\n".join(part for part in (f"{'#' * level} {name}", block(shown), words) if part)


def _call(name: str, arguments: ast.arguments, returns: str | None, *, method: bool) -> str:
    """A signature in one line, or one argument a line where it would be long. `self` is left out."""
    shown = _arguments(arguments)
    shown = shown[1:] if method else shown
    end = f" -> {returns}" if returns else ""
    line = f"{name}({', '.join(shown)}){end}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){end}"


def _arguments(given: ast.arguments) -> list[str]:
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    shown = [_argument(*pair) for pair in zip(plain, defaults, strict=True)]
    if given.vararg:
        shown.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return shown + ([f"**{_argument(given.kwarg, None)}"] if given.kwarg else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    value = f" = {ast.unparse(default)}" if default is not None else ""
    return f"{argument.arg}{kind}{value}"
