"""The lists and dicts of a program, by its text: which variables and attributes hold nothing else.

What is put into one goes to whoever reads it. What is put into anything else, a tensor or a module, matters at once.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ringleader.program_text.calls import arguments
from ringleader.program_text.program_scope import (
    CONTAINERS,
    Function,
    Key,
    ProgramScope,
    assigned_in,
    name_of,
)

_NAMESPACES = frozenset(["SimpleNamespace", "Namespace"])
_OF_TORCH = frozenset([".param_groups", ".state", ".data", ".grad"])
"""Attributes of torch's own objects, whatever a class of the program has under such a name."""
_UNSEEN: Key = ("", "*")
"""Stands for a parameter that cannot be told."""

Scopes = Mapping[ast.AST, ProgramScope]
Functions = Mapping[str, Sequence[tuple[Function, ProgramScope]]]
Given = dict[Key, list[tuple[ast.expr, ProgramScope]]]
"""By variable, the values that it is given, each with the scope of the line that does."""


def look_for_containers(scopes: Scopes, functions: Functions) -> list[tuple[Key, int, Key]]:
    """Tell each scope its containers: those that are made there, attributes and globals that the file makes as nothing
    else, and other names of these, as parameters are.

    Args:
        functions: the file's functions, by name.

    Returns:
        The other names, each with a line that gives it and with the container that it is a name of.
    """
    given, stores = _assigned(scopes)
    for key, values in given.items():
        for value, scope in values:
            if _makes_container(value):
                scope.containers.add(key)
    # One that gets a value in a way that is not seen, as the target of a loop, may be anything.
    shared = {
        key
        for key, values in given.items()
        if not key[0] and key[1] not in _OF_TORCH and len(values) == stores[key] and _are_made(values)
    }
    for scope in scopes.values():
        scope.containers |= shared
    names = {key: values for key, values in given.items() if key[0] and len(values) == stores[key]}
    return list(_named({**names, **_passed(scopes, functions, stores)}, scopes))


def _assigned(scopes: Scopes) -> tuple[Given, Counter[Key]]:
    """What variables and attributes are assigned, and how often anything gives them a value."""
    classes = {top.name for top in scopes if isinstance(top, ast.ClassDef)}
    given: Given = defaultdict(list)
    stores: Counter[Key] = Counter()
    for top, scope in scopes.items():
        declared = {
            id(node.target) for node in ast.walk(top) if isinstance(node, ast.AnnAssign) and not node.value
        }
        for node in ast.walk(top):
            pairs = [(scope.holder(t), v) for t, v in assigned_in(node) if not isinstance(t, ast.Subscript)]
            of_objects = [(("", f".{name}"), value) for name, value in _attributes_made(node, classes)]
            for key, value in (*pairs, *of_objects):
                if key is not None:
                    given[key].append((value, scope))
            stores.update(key for key, _ in of_objects)
            if not isinstance(node, ast.Name | ast.Attribute) or id(node) in declared:
                continue
            if isinstance(node.ctx, ast.Store) and (stored := scope.holder(node)) is not None:
                stores[stored] += 1
    return given, stores


def _attributes_made(node: ast.AST, classes: set[str]) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that a namespace is made with, or that a class gives to its objects."""
    if isinstance(node, ast.Call) and name_of(node.func) in _NAMESPACES | classes:
        yield from ((each.arg, each.value) for each in node.keywords if each.arg)
    for statement in node.body if isinstance(node, ast.ClassDef) else ():
        for target, value in assigned_in(statement):
            if isinstance(target, ast.Name):
                yield target.id, value


def _are_made(values: Sequence[tuple[ast.expr, ProgramScope]]) -> bool:
    """Whether the values are containers that are made there, or None."""
    made = [_makes_container(value) for value, _ in values]
    nothing = [isinstance(value, ast.Constant) and value.value is None for value, _ in values]
    return any(made) and all(map(max, made, nothing))


def _makes_container(value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp():
            return True
        case ast.Call(func=called, keywords=given):
            kind = called.value if isinstance(called, ast.Subscript) else called  # list[float]()
            return name_of(kind) in CONTAINERS or any(
                each.arg == "default_factory" and _gives_container(each.value) for each in given
            )
    return False


def _gives_container(factory: ast.expr) -> bool:
    """Whether `field(default_factory=…)` of a dataclass makes one."""
    if isinstance(factory, ast.Lambda):
        return _makes_container(factory.body)
    return name_of(factory) in CONTAINERS


def _passed(scopes: Scopes, functions: Functions, stores: Counter[Key]) -> Given:
    """What parameters are given by all calls of their functions: of those that are called by their names alone."""
    nodes = [(node, scope) for top, scope in scopes.items() for node in ast.walk(top)]
    calls = [
        (node, scope)
        for node, scope in nodes
        if isinstance(node, ast.Call) and name_of(node.func) in functions
    ]
    called = {id(call.func) for call, _ in calls}
    values = {
        name_of(node)
        for node, _ in nodes
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and id(node) not in called
    }
    given: Given = defaultdict(list)
    for call, scope in calls:
        for function, its in functions[name_of(call.func)]:
            # Handed on as a value, or decorated, it may be called with anything.
            if function.name in values or function.decorator_list:
                continue
            for argument, parameters in arguments(call, function, its, every={_UNSEEN}):
                for key in parameters:
                    given[key].append((argument, scope))
    return {key: values for key, values in given.items() if not stores[key]}


def _named(given: Given, scopes: Scopes) -> Iterator[tuple[Key, int, Key]]:
    """Look for what is given containers alone, until nothing is added."""
    owners: dict[str, list[ProgramScope]] = defaultdict(list)
    for scope in scopes.values():
        owners[scope.name].append(scope)
    # A name of a name is found in a later round than the name itself.
    left = dict(given)
    while found := {key for key, values in left.items() if all(_is_container(*each) for each in values)}:
        for key in found:
            for owner in owners[key[0]]:
                owner.containers.add(key)
            for value, scope in left.pop(key):
                held = None if _makes_container(value) else scope.holder(value)
                if held is not None and held != key:
                    yield key, value.lineno, held


def _is_container(value: ast.expr, scope: ProgramScope) -> bool:
    own = isinstance(value, ast.Name | ast.Attribute) and scope.holder(value) in scope.containers
    return own or _makes_container(value)
