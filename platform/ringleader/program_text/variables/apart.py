"""Variables that have the name of another one: those of comprehensions, and those of functions inside of others.

The functions of an outermost function or class share its scope. A `loss` of a nested `evaluate()` is not the `loss` of
the loop beside it, and a method's is not that of another method, so each gets a name that nothing else in the tree has.
"""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ringleader.program_text.program_scope import (
    OF_COMPREHENSION,
    OF_FUNCTION,
    Definition,
    Function,
    has_own,
    parameter_nodes,
    variables_of,
)
from ringleader.program_text.statement_order import COMPREHENSIONS

_EVERYWHERE = frozenset(["self", "cls", "session"])
"""Names that mean the same in all functions, and that others look for."""


@dataclass(frozen=True, slots=True)
class LocalNames:
    """The names that variables of one function have in the tree.

    Attributes:
        first: its first line, with decorators.
        last: its last line.
        names: those in the tree, by those in the program.
    """

    first: int
    last: int
    names: Mapping[str, str]


def plain(name: str) -> str:
    """The name that a variable has in the program."""
    return re.sub(rf"{OF_FUNCTION}\d+", "", name)


def name_comprehensions_apart(tree: ast.AST) -> None:
    """Rename the variables of each comprehension, in place, to names that nothing else in the tree has.

    None belongs to the function around it, even if it has the name of one there.
    """
    found = [node for node in ast.walk(tree) if isinstance(node, COMPREHENSIONS)]
    for number, node in enumerate(
        found
    ):  # from outside in: an inner one may have a variable of the same name
        own = {
            name.id
            for generator in node.generators
            for name in ast.walk(generator.target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        around = {id(name) for name in ast.walk(node.generators[0].iter)}  # evaluated outside
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and name.id in own and id(name) not in around:
                name.id += f"{OF_COMPREHENSION}{number}"


def name_functions_apart(tree: ast.Module) -> list[LocalNames]:
    """Rename, in place, the variables of functions where another one of the same outermost function or class has one of
    that name. Returns what was renamed, the outer function before those inside."""
    tops = [top for top in tree.body if isinstance(top, Definition)]
    return [names for top in tops for names in _apart_in(top)]


def _apart_in(top: Definition) -> list[LocalNames]:
    functions = [node for node in ast.walk(top) if isinstance(node, Function)]  # from outside in
    own = [variables_of(function) - _EVERYWHERE for function in functions]
    several = {name for name, number in Counter(name for each in own for name in each).items() if number > 1}
    taken: set[str] = set()
    found: list[LocalNames] = []
    for number, (function, variables) in enumerate(zip(functions, own, strict=True)):
        names = {name: f"{name}{OF_FUNCTION}{number}" for name in variables & several & taken}
        taken |= variables & several
        if names:
            first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
            found.append(LocalNames(first, function.end_lineno or function.lineno, names))
            _rename_inside(function, names)
    return found


def _rename_inside(function: Function, names: Mapping[str, str]) -> None:
    for parameter in parameter_nodes(function):
        parameter.arg = names.get(parameter.arg, parameter.arg)
    for statement in function.body:
        _rename(statement, names)


def _rename(node: ast.AST, names: Mapping[str, str]) -> None:
    match node:
        case ast.Name(id=name):
            node.id = names.get(name, name)
        case ast.Nonlocal(names=others):
            node.names = [names.get(name, name) for name in others]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            node.name = names.get(name, name)
        case ast.MatchMapping(rest=str(name)):
            node.rest = names.get(name, name)
    inside = names
    if isinstance(node, Function | ast.Lambda):
        # Another one of that name is its own; what stands before its body is evaluated outside.
        inside = {name: new for name, new in names.items() if not has_own(node, name)}
        inside = {name: new for name, new in inside.items() if name not in _globals_of(node)}
    body = node.body if isinstance(node, Function | ast.Lambda) else None
    for child in ast.iter_child_nodes(node):
        within = child is body or (isinstance(body, list) and child in body)
        _rename(child, inside if within else names)


def _globals_of(function: Function | ast.Lambda) -> set[str]:
    found = (node for node in ast.walk(function) if isinstance(node, ast.Global))
    return {name for node in found for name in node.names}
