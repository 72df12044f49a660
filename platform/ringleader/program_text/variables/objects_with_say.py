"""Variables that hold objects with a say in training: more is done with them than to show what they tell, or to fill
them.

A meter that a loop fills for people has attributes that go on from turn to turn, as has one by which a rate is set: the
variables tell them apart.
"""

import ast
from collections.abc import Collection
from functools import cached_property

from ringleader.program_text.calls import CALLED, GIVING, OF_TURNS, ROW, may_be_read_by_number
from ringleader.program_text.program_scope import Function, Key, name_of
from ringleader.program_text.statement_flow import LOSS, MATTERS
from ringleader.program_text.value_flow import ValueFlow, reached


class ObjectsWithSay:
    """The answers that the flow of one or several files gives about their objects."""

    def __init__(self, flow: ValueFlow) -> None:
        self._flow = flow

    def may_be(self, key: Key, *, by_methods: bool) -> bool:
        """Whether a variable, or an attribute, may hold one.

        Args:
            by_methods: also by what methods of a name that is called do to others.
        """
        return key in (self._by_methods if by_methods else self._by_values)

    def acting_methods(self, classes: Collection[str], others: Collection[str]) -> set[str]:
        """The methods of these classes that do more than to change their object, or that call such functions.

        Args:
            others: the functions of the program that do.
        """
        kinds = [
            node
            for top in self._flow.scopes
            for node in ast.walk(top)
            if isinstance(node, ast.ClassDef) and node.name in classes
        ]
        methods = {each.name: each for kind in kinds for each in kind.body if isinstance(each, Function)}
        found: set[str] = set()
        acting = set(others) - methods.keys()
        while more := {name for name, each in methods.items() if self._acts(each, acting | found)} - found:
            found |= more
        return found | ({CALLED} if found & {"forward"} else set())

    def gives(self, key: Key, acting: Collection[str]) -> bool:
        """Whether something else flows from an object in that variable, or one of these methods is called there."""
        return key in self._keys({holder for holder, method in self._flow.receivers if method in acting})

    def _acts(self, function: Function, acting: Collection[str]) -> bool:
        called = {name_of(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
        return not (self._lines.isdisjoint(_span(function)) and called.isdisjoint(acting))

    @cached_property
    def _lines(self) -> set[int]:
        """The lines that do more than to set something. What a function gives is followed to who calls it."""
        ends = {MATTERS, LOSS}
        return {load.line for load in self._flow.loads if load.into in ends and load.key[0] != "()"}

    @cached_property
    def _by_methods(self) -> set[Key]:
        return self._keys({key for key, method in self._flow.receivers if method in self.acting})

    @cached_property
    def _by_values(self) -> set[Key]:
        called = {key for key, method in self._flow.receivers if method == CALLED}
        return self._keys(called if CALLED in self.acting else set())

    def _keys(self, acting: set[Key]) -> set[Key]:
        kinds = [
            node for top in self._flow.scopes for node in ast.walk(top) if isinstance(node, ast.ClassDef)
        ]
        kinds = [kind for kind in kinds if any(getattr(each, "name", "") == ROW for each in kind.body)]
        rows = any(map(may_be_read_by_number, kinds))
        results = {("()", name) for name in (GIVING | OF_TURNS) - (set() if rows else {ROW})}
        return reached(self._flow.loads, {MATTERS, LOSS} | results | acting)

    @cached_property
    def acting(self) -> set[str]:
        """The functions that do more than to change what they belong to, or that call such."""
        functions = {name: [each for each, _ in found] for name, found in self._flow.functions.items()}
        acting = {
            name
            for name, found in functions.items()
            if any(not self._lines.isdisjoint(_span(each)) for each in found)
        }
        calls = {
            name: {
                name_of(node.func) for each in found for node in ast.walk(each) if isinstance(node, ast.Call)
            }
            for name, found in functions.items()
        }
        while more := {name for name, called in calls.items() if called & acting} - acting:
            acting |= more
        return acting


def _span(function: Function) -> range:
    """The lines of a function."""
    return range(function.lineno, (function.end_lineno or 0) + 1)
