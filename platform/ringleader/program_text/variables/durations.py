"""Variables and arguments that only tell how long something took, by a program's text."""

import ast
from collections import Counter, defaultdict
from collections.abc import Collection

from ringleader.program_text.program_scope import Key, ProgramScope, assigned_in, name_of

CLOCKS = frozenset(
    ["time", "perf_counter", "monotonic", "process_time", "default_timer", "time_ns", "perf_counter_ns"]
)
"""Calls that tell the time. A duration that is passed to a call as a statement, to a meter, is shown to people."""


def times_in(top: ast.AST, scope: ProgramScope) -> set[Key]:
    """The variables that hold nothing but times, by every statement that sets them."""
    given: dict[Key, list[ast.expr]] = defaultdict(list)
    stores: Counter[Key] = Counter()
    for node in ast.walk(top):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stores[scope.key(node.id)] += 1
        for target, value in assigned_in(node):
            if isinstance(target, ast.Name):
                given[scope.key(target.id)].append(value)
    # Of the function's own variables: others may be set elsewhere.
    times = {key for key, values in given.items() if key[0] and len(values) == stores[key]}
    while others := {key for key in times if not all(_tells_time(v, times, scope) for v in given[key])}:
        times -= others
    return times


def without_durations(call: ast.expr, times: Collection[Key], scope: ProgramScope) -> ast.expr:
    """A call, with a number in place of each argument that only says how long something took."""

    def told(node: ast.expr) -> ast.expr:
        return ast.copy_location(ast.Constant(0), node) if _tells_time(node, times, scope) else node

    if not isinstance(call, ast.Call):
        return call
    keywords = [ast.keyword(each.arg, told(each.value)) for each in call.keywords]
    return ast.copy_location(ast.Call(call.func, [*map(told, call.args)], keywords), call)


def _tells_time(node: ast.expr, times: Collection[Key], scope: ProgramScope) -> bool:
    """Whether the expression is of times and numbers alone, and not of numbers alone."""
    match node:
        case ast.Name(id=name):
            return scope.key(name) in times
        case ast.Call(func=called, args=[], keywords=[]):
            of_module = not isinstance(called, ast.Attribute) or name_of(called.value) in ("time", "timeit")
            return of_module and name_of(called) in CLOCKS
        case ast.BinOp(left=left, right=right):
            parts = [part for part in (left, right) if not isinstance(part, ast.Constant)]
            return bool(parts) and all(_tells_time(part, times, scope) for part in parts)
    return False
