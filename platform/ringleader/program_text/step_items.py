"""The turns of loops in a program's text: the items of those over `session.steps`, and the end of any turn.

A loop over slices has what one worker computes, and the loops around it have what all members run.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence

from ringleader.program_text.program_scope import Definition, Function, ProgramScope, name_of
from ringleader.program_text.statement_order import COMPREHENSIONS, Loop

Functions = Mapping[str, Sequence[tuple[Function, ProgramScope]]]


def method_calls(node: ast.AST, name: str) -> Iterator[tuple[ast.Call, str]]:
    """The calls of a method of that name below the node, each with the text of what has it."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == name:
            yield each, ast.unparse(each.func.value)


def goes_over_slices(source: ast.expr, top: ast.AST) -> bool:
    """Whether a loop over `source` goes over the slices of a step.

    Args:
        top: the outermost function or class around the loop.
    """
    slices, phases = _names(top)
    picked = (node.value for node in ast.walk(source) if isinstance(node, ast.Subscript))
    return bool(_named(source) & slices) or any(_named(node) & phases for node in picked)


def ends_turns(body: Sequence[ast.AST], functions: Functions, *, called: bool = True) -> bool:
    """Whether these lines, but for loops and comprehensions in them, end a turn by `session.step(…)`, or call functions
    that do: of a loop that has them the batches may be a parameter of the function around it.

    Args:
        functions: those of the file, by name.
        called: look at the functions that they call, too.
    """
    nodes: list[ast.AST] = [*body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Call):
            owner = name_of(getattr(node.func, "value", node))
            if owner == "session" and name_of(node.func) == "step":
                return True
            own = isinstance(node.func, ast.Name) or owner == "self"
            inner = functions.get(name_of(node.func), []) if called and own else []
            if inner and all(ends_turns(each.body, functions, called=False) for each, _ in inner):
                return True
        if not isinstance(node, Loop | Definition | ast.Lambda | COMPREHENSIONS):
            nodes += ast.iter_child_nodes(node)
    return False


def _names(top: ast.AST) -> tuple[set[str], set[str]]:
    """The variables that are slices of a step, and those that are several phases of one."""
    slices: set[str] = set()
    phases: set[str] = set()
    loops = [node for node in ast.walk(top) if isinstance(node, ast.For | ast.AsyncFor)]
    for loop in loops:
        for call, _ in method_calls(loop.iter, "steps"):
            several = {
                n for node in ast.walk(loop.target) if isinstance(node, ast.Starred) for n in _named(node)
            }
            if isinstance(loop.target, ast.Name) and any(each.arg == "phases" for each in call.keywords):
                several = _named(loop.target)
            phases |= several
            slices |= _named(loop.target) - several
    for node in ast.walk(top):
        match node:
            case ast.For(target=target, iter=value) if _named(value) & phases:
                slices |= _named(target) if not isinstance(value, ast.Subscript) else set()
            case ast.Assign(targets=targets, value=value) if _named(value) & phases:
                slices |= {name for target in targets for name in _named(target)}
    return slices - phases, phases


def _named(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
