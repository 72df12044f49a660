"""Which variables and attributes turns of a loop find as they were: neither its body nor a function that this may call
sets them."""

import ast
from collections.abc import Iterator, Sequence

from ringleader.program_text.program_scope import Function, ProgramScope, has_own, name_of
from ringleader.program_text.statement_order import Loop, span
from ringleader.program_text.turn_paths.known_tests import (
    LEAVES_AS_IT_IS,
    Settled,
    changed_in_place,
    stored_by,
)
from ringleader.program_text.value_flow import ValueFlow

_MAKING = frozenset(["__init__", "__post_init__", "setup"])
"""Methods that run before any turn."""


class SettledPlaces:
    """What sets the variables and attributes (".name") that the tests in a loop read.

    Args:
        path: the nodes around the loop, outermost first, and itself.
    """

    def __init__(self, path: Sequence[ast.AST], flows: ValueFlow, scope: ProgramScope) -> None:
        self._flows = flows
        self._scope = scope
        around = [node for node in path if isinstance(node, Function)]
        self._function = around[-1] if around else None
        outermost = next(node for node in path if isinstance(node, Loop))
        self._lines = span(outermost)
        nodes = list(ast.walk(outermost))
        self._others = [
            span(function)
            for found in flows.functions.values()
            for function, _ in found
            if function not in around and function.name not in _MAKING
        ]
        self._set = {place for node in nodes for place in stored_by(node)}
        self._set |= {place for node in ast.walk(path[0]) for place in changed_in_place(node)}
        self._handed = {name for node in nodes for name in _handed_by(node)}

    def for_variable(self, name: str) -> Settled:
        """What counts for tests before the uses of this variable."""
        # An attribute, and a variable of another function, outlives the call in which the loop is: the parameters that
        # tests read may be others in the next one.
        outlives = name.startswith(".") or not (self._function is None or has_own(self._function, name))
        return Settled(self._by_calls, (lambda _: True) if outlives else self._by_turns, self._handed)

    def _by_calls(self, place: str) -> bool:
        return any(first <= line <= last for line in self._lines_of(place) for first, last in self._others)

    def _by_turns(self, place: str) -> bool:
        begin, end = self._lines
        within = any(begin <= line <= end for line in self._lines_of(place))
        return place in self._set or within or self._by_calls(place)

    def _lines_of(self, place: str) -> Sequence[int]:
        key = ("", place) if place.startswith(".") else self._scope.key(place)
        return self._flows.sets.get(key, ())


def _handed_by(node: ast.AST) -> Iterator[str]:
    """The variables that a call is given, which may change what is in them."""
    if isinstance(node, ast.Call) and name_of(node.func) not in LEAVES_AS_IT_IS:
        given = (*node.args, *(keyword.value for keyword in node.keywords))
        yield from (each.id for each in given if isinstance(each, ast.Name))
