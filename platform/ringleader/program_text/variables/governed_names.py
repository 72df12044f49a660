"""The variables that a condition or a loop governs: those that its lines set, and whether they do anything else."""

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from ringleader.program_text.calls import HARMLESS, ends_a_turn
from ringleader.program_text.program_scope import Function, Key, ProgramScope, name_of

_COMPUTING = frozenset(
    ["abs", "all", "any", "bool", "float", "int", "len", "max", "min", "range", "round", "str", "sum"]
)
Changes = Callable[[ast.Call], set[Key] | None]
_LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Yield)


def governed(
    node: ast.stmt, scope: ProgramScope, alone: set[str], changes: Changes
) -> tuple[set[Key], bool, bool]:
    """The keys that a condition, or a number of turns, affects; whether its lines do anything but set these; and
    whether one of them ends a turn.

    Args:
        alone: the names that loops go through, and that nothing else reads.
        changes: what a call changes that does nothing else: `buffer.average()`.
    """
    inside = [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
    targets = {key for each in inside for key in _targets_alone(each, scope, alone)}
    keys = {key for key, _ in scope.changed_by(inside)} - targets
    calls = [n.value for each in inside for n in ast.walk(each) if isinstance(n, ast.Expr)]
    keys |= {key for call in calls if isinstance(call, ast.Call) for key in changes(call) or ()}
    ends = any(ends_a_turn(each) for statement in inside for each in ast.walk(statement))
    return keys, any(_acts(each, scope, changes) for each in inside), ends


class FunctionEffects:
    """What functions of the program do that only set variables of their own, or of their object, and give values.

    Args:
        imported: the names that imports bind.
    """

    def __init__(self, imported: Collection[str]) -> None:
        self._imported = imported
        self._known: dict[int, bool] = {}

    def changed_by(self, functions: Sequence[tuple[Function, ProgramScope]]) -> set[Key] | None:
        """What a call of them changes; None where it may do anything else."""
        if not functions or not all(self._give_values(*each) for each in functions):
            return None
        return {key for function, scope in functions for key, _ in scope.changed_by(function.body)}

    def decided_in(self, function: Function | None, scope: ProgramScope) -> set[Key]:
        """What a condition in the function decides by an early `return`: what it sets and gives. Nothing where it may
        do anything else."""
        if function is None or not self._give_values(function, scope):
            return set()
        return {("()", function.name), *(key for key, _ in scope.changed_by(function.body))}

    def _give_values(self, function: Function, scope: ProgramScope) -> bool:
        if id(function) not in self._known:
            self._known[id(function)] = _gives_values_alone(function, scope, self._imported)
        return self._known[id(function)]


def _gives_values_alone(function: Function, scope: ProgramScope, imported: Collection[str]) -> bool:
    """Whether a function does nothing but set variables of its own and give values: `return 0.0 if …`, and `if not
    self.count: return 0.0` before that. A call of a function of the program may do anything."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    acts = (_acts(statement, scope, _nothing, (ast.Raise, ast.Yield)) for statement in function.body)
    return all(_computes(each, imported) for each in calls) and not any(acts)


def _computes(called: ast.expr, imported: Collection[str]) -> bool:
    """Whether it is a function of Python's or a library's, or a method of tensors that changes nothing."""
    if isinstance(called, ast.Name):
        return called.id in _COMPUTING
    if not isinstance(called, ast.Attribute):
        return False
    of_library = isinstance(called.value, ast.Name) and called.value.id in imported
    of_tensors = hasattr(torch.Tensor, called.attr) and called.attr != "backward"
    return of_library or (of_tensors and not called.attr.endswith("_"))


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


def _nothing(_: ast.Call) -> None:
    """What is known of a call where none is followed."""


def _acts(
    statement: ast.AST,
    scope: ProgramScope,
    changes: Changes,
    leaving: tuple[type[ast.AST], ...] = _LEAVING,
) -> bool:
    """Whether it does anything but set the function's own variables, or add to its containers.

    Args:
        leaving: the statements that decide which others run.
    """
    for node in ast.walk(statement):
        if isinstance(node, leaving):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            added = scope.added(node.value)
            if (
                name_of(node.value.func) not in HARMLESS
                and added not in scope.containers
                and changes(node.value) is None
            ):
                return True
        if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Store):
            continue
        if not scope.is_own(node):
            return True
    return False
