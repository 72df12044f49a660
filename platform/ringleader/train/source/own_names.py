"""The variables that a nested function has of its own, though others around it may have the same names."""

import ast

from ringleader.train.source.value_flow import Definition, Function


def has_own(function: Function, name: str) -> bool:
    """Whether the name is a parameter or a local variable of this very function: what is set in a function or class
    inside it is not."""
    return name in _arguments(function) | _set_in(function)


def _arguments(function: Function) -> set[str]:
    given = function.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return {argument.arg for argument in every if argument is not None}


def _set_in(function: Function) -> set[str]:
    found: set[str] = set()
    outside: set[str] = set()
    nodes: list[ast.AST] = list(function.body)
    while nodes:
        node = nodes.pop()
        match node:
            case ast.Nonlocal(names=names) | ast.Global(names=names):
                outside |= set(names)
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.ExceptHandler(name=str() as name):
                found.add(name)
            case ast.MatchAs(name=str() as name) | ast.alias(asname=str() as name) | ast.alias(name=name):
                found.add(name)
        nodes += [] if isinstance(node, Definition | ast.Lambda) else ast.iter_child_nodes(node)
    return found - outside
