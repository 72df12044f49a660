"""Variables that lines after a step of `session.steps` leave to the body of later ones, and what a program changes
in its process while it trains, by its text."""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ringleader.program_text.calls import OF_TURNS
from ringleader.program_text.carried_names import is_set_anew
from ringleader.program_text.loop_bodies import SourceText
from ringleader.program_text.program_scope import Function, Key, ProgramScope, name_of
from ringleader.program_text.statement_order import Loop, given
from ringleader.program_text.step_items import goes_over_batches, method_calls

SETTERS = {
    "set_default_dtype": "get_default_dtype",
    "set_float32_matmul_precision": "get_float32_matmul_precision",
    "use_deterministic_algorithms": "are_deterministic_algorithms_enabled",
}
"""Functions of torch that set something for the whole process, and those that tell what it is."""
_ENVIRON, _READING = "environ", frozenset(["get", "getenv"])
_WRITING = frozenset(["pop", "setdefault", "putenv", "unsetenv"])


@dataclass(frozen=True, slots=True)
class ProcessChange:
    """Something of the process that a program changes in a loop, or in a function that others call.

    Attributes:
        place: as the text has it: `os.environ['LEVEL']`, `F.cross_entropy`, `torch.set_default_dtype`.
        variable: the name of the environment variable; empty for anything else.
    """

    place: str
    line: int
    variable: str = ""


@lru_cache(maxsize=32)
def left_to_later_steps(text: SourceText) -> frozenset[Key]:
    """The variables and attributes that lines after a step change, but not in each step anew: who comes in later has
    not run those that did. Not what bodies change."""
    found: set[Key] = set()
    # Forwards, and what gives rows, run in turns by no name.
    named = [pair for name in OF_TURNS for pair in text.flows.functions.get(name, ())]
    in_turns = {key for function, scope in named for key, _ in scope.changed_by(function.body)}
    bodies = list(_changed_by_bodies(text))
    for top, scope in text.flows.scopes.items():
        for loop in (node for node in ast.walk(top) if isinstance(node, ast.For)):
            if not goes_over_batches(loop, top, text.flows.functions, of_ray=False) and any(
                method_calls(loop.iter, "steps")
            ):
                lines = list(_lines(loop.body, top, text))
                left = {key for key, _ in scope.changed_by(lines) if not is_set_anew(loop, key, text.flows)}
                left |= _changed_in_calls(lines, text)
                # Another program of the file may have another attribute of that name.
                together = text.together_with(scope.name) | {scope.name}
                found |= left.difference(*(keys for name, keys in bodies if name in together))
    return frozenset(found - in_turns)


@lru_cache(maxsize=32)
def process_changes(text: SourceText) -> tuple[ProcessChange, ...]:
    """The changes of a program to its process; of environment variables those that it reads, too."""
    nodes = list(ast.walk(text.tree))
    read = {name for node in nodes for name in _read_variables(node)}
    found = list(_changes(_running_with_steps(text), text.flows.imported))
    return tuple(each for each in found if not each.variable or each.variable in read)


def _changed_by_bodies(text: SourceText) -> Iterator[tuple[str, set[Key]]]:
    """The variables that bodies change, by the outermost function or class around them."""
    for top, scope in text.flows.scopes.items():
        changed = {carry.key for carry in text.carried.values() if carry.scope == scope.name}
        for loop in (node for node in ast.walk(top) if isinstance(node, Loop)):
            if goes_over_batches(loop, top, text.flows.functions, of_ray=False):
                changed |= {key for key, _ in scope.changed_by([*given(loop), *loop.body])}
                changed |= _changed_in_calls(loop.body, text)
        yield scope.name, changed


def _lines(body: Sequence[ast.stmt], top: ast.AST, text: SourceText) -> Iterator[ast.stmt]:
    """The statements of a loop over steps but for those that go over its slices."""
    for statement in body:
        slices = isinstance(statement, Loop) and goes_over_batches(
            statement, top, text.flows.functions, of_ray=False
        )
        if not slices:
            yield statement


def _changed_in_calls(statements: Iterable[ast.AST], text: SourceText) -> set[Key]:
    """The variables that functions of the file change which these statements call, and those that these call."""
    called: dict[Function, ProgramScope] = {}
    left = list(statements)
    while left:
        for node in ast.walk(left.pop()):
            known = text.flows.functions.get(name_of(node.func), ()) if isinstance(node, ast.Call) else ()
            for function, scope in known:
                if function not in called:
                    called[function] = scope
                    left += function.body
    return {key for function, scope in called.items() for key, _ in scope.changed_by(function.body)}


def _running_with_steps(text: SourceText) -> Iterable[ast.AST]:
    """The nodes of loops, of functions inside of functions and classes, of callbacks, and of the functions of the file
    that any of these call."""
    tops = {top.name: top for top in text.tree.body if isinstance(top, Function)}
    callbacks = [tops.pop(name) for _, name in text.flows.callbacks if name in tops]
    found = dict.fromkeys(node for top in text.tree.body for node in _repeated(top))
    found |= dict.fromkeys(node for top in callbacks for node in ast.walk(top))
    left = list(found)
    while left:
        node = left.pop()
        called = tops.pop(name_of(node.func), None) if isinstance(node, ast.Call) else None
        new = list(ast.walk(called)) if called is not None else []
        found |= dict.fromkeys(new)
        left += new
    return found


def _repeated(top: ast.AST) -> Iterator[ast.AST]:
    """The nodes of loops, and of functions inside of functions and classes: lines that may run with each step."""
    for node in ast.walk(top):
        if node is not top and isinstance(node, Loop | Function | ast.Lambda):
            yield from ast.walk(node)


def _changes(nodes: Iterable[ast.AST], imported: Collection[str]) -> Iterator[ProcessChange]:
    for node in nodes:
        match node:
            case ast.Subscript(
                value=owner, slice=ast.Constant(str() as name), ctx=ast.Store() | ast.Del()
            ) if _is_environ(owner):
                yield ProcessChange(f"os.environ[{name!r}]", node.lineno, name)
            case ast.Call(
                func=ast.Attribute(attr=method, value=owner), args=[ast.Constant(str() as name), *_]
            ) if method in _WRITING and (_is_environ(owner) or method.endswith("env")):
                yield ProcessChange(f"os.environ[{name!r}]", node.lineno, name)
            case ast.Attribute(value=owner, ctx=ast.Store()) if _root(owner) in imported:
                yield ProcessChange(ast.unparse(node), node.lineno)
            case ast.Call(func=ast.Attribute(attr=name)) if name in SETTERS:
                yield ProcessChange(f"torch.{name}", node.lineno)


def _read_variables(node: ast.AST) -> Iterator[str]:
    """The environment variables that the very node reads."""
    match node:
        case ast.Subscript(value=owner, slice=ast.Constant(str() as name), ctx=ast.Load()) if _is_environ(
            owner
        ):
            yield name
        case ast.Call(func=function, args=[ast.Constant(str() as name), *_]) if name_of(function) in _READING:
            yield name
        case ast.Compare(left=ast.Constant(str() as name), comparators=[owner]) if _is_environ(owner):
            yield name


def _is_environ(node: ast.expr) -> bool:
    return name_of(node) == _ENVIRON


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
