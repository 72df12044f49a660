"""The variables that a condition or a loop governs: those that its lines set, and whether they do anything else."""

import ast
from collections import Counter
from collections.abc import Iterator

from ringleader.program_text.calls import HARMLESS, ends_a_turn
from ringleader.program_text.program_scope import Key, ProgramScope, name_of


def governed(node: ast.stmt, scope: ProgramScope, alone: set[str]) -> tuple[set[Key], bool, bool]:
    """The keys that a condition, or a number of turns, affects; whether its lines do anything but set these; and
    whether one of them ends a turn.

    Args:
        alone: the names that loops go through, and that nothing else reads.
    """
    inside = [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
    targets = {key for each in inside for key in _targets_alone(each, scope, alone)}
    keys = {key for key, _ in scope.changed_by(inside)} - targets
    ends = any(ends_a_turn(each) for statement in inside for each in ast.walk(statement))
    return keys, any(_acts(each, scope) for each in inside), ends


def read_in_their_loops(top: ast.AST) -> set[str]:
    """The names that loops go through, and that are set and read nowhere else."""
    loops = [node for node in ast.walk(top) if isinstance(node, ast.For)]
    inside: Counter[str] = Counter()
    for loop in loops:
        for name in {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}:
            within = [n for part in (loop.target, *loop.body) for n in ast.walk(part)]
            inside[name] += sum(isinstance(n, ast.Name) and n.id == name for n in within)
    names = Counter(n.id for n in ast.walk(top) if isinstance(n, ast.Name))
    return {name for name, number in inside.items() if names[name] == number}


def _targets_alone(inside: ast.AST, scope: ProgramScope, alone: set[str]) -> Iterator[Key]:
    """The variables that loops in there go through, and that nothing reads but loops that go through them: to leave out
    a loop gives them no other value."""
    for loop in (node for node in ast.walk(inside) if isinstance(node, ast.For)):
        for name in (node for node in ast.walk(loop.target) if isinstance(node, ast.Name)):
            if name.id in alone:
                yield scope.key(name.id)


def _acts(statement: ast.stmt, scope: ProgramScope) -> bool:
    """Whether it does anything but set the function's own variables, or add to its containers."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue | ast.Yield):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            added = scope.added(node.value)
            if name_of(node.value.func) not in HARMLESS and added not in scope.containers:
                return True
        if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Store):
            continue
        if not scope.is_own(node):
            return True
    return False
