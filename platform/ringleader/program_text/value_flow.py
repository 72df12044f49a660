"""The flow of values through a program's text: which variables affect training, and which are only printed."""

import ast
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from ringleader.program_text.calls import GIVING, OF_TURNS, TEXTS
from ringleader.program_text.program_scope import Key
from ringleader.program_text.statement_flow import ACTS, LOSS, MATTERS, StatementFlow, VariableRead

_COLLATES = frozenset(["collate", "collate_fn", "data_collator"])
"""The arguments by which a loop is given what makes batches of rows."""


class ValueFlow(StatementFlow):
    """The flow of values in one file."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self._matters = reached(self.loads, {MATTERS, ACTS})
        self._given_on = reached(self.loads, {MATTERS})
        self._in_turns = reached(self.loads, {MATTERS, ACTS} | {("()", name) for name in GIVING})
        in_losses = reached(self.loads, {LOSS} | {("()", name) for name in OF_TURNS})
        self._lines_in_losses: dict[Key, list[int]] = defaultdict(list)
        for load in self.loads:
            if load.key != load.into and load.into in in_losses:
                self._lines_in_losses[load.key].append(load.line)

    @cached_property
    def collates(self) -> list[tuple[str, ast.expr]]:
        """What makes batches of rows, as it is given to somebody (a function's name, a method, a lambda), each with the
        outermost function or class that does."""
        nodes = ((scope.name, node) for top, scope in self.scopes.items() for node in ast.walk(top))
        calls = ((name, each) for name, node in nodes if isinstance(node, ast.Call) for each in node.keywords)
        return [(name, each.value) for name, each in calls if each.arg in _COLLATES]

    def matters(self, key: Key) -> bool:
        """Whether a value of the variable goes where it affects training."""
        return key in self._matters

    def is_given_on(self, key: Key) -> bool:
        """Whether a value of the variable, or what it gives where it is called, affects training: not a function that
        is only called for what it does, which is often to show something, on one worker alone."""
        return key in self._given_on

    def may_matter(self, key: Key) -> bool:
        """Whether it matters where any function's result may: the text does not show who calls a module's forward."""
        results = {("()", name) for name in self.functions.keys() - TEXTS}
        return key in reached(self.loads, {MATTERS, ACTS} | results)

    def matter_in_turns_at(self, key: Key) -> list[int]:
        """The lines in which the variable is read for something that matters, also for what a model or a data set
        gives: its methods are not called by their names."""
        reads = (load for load in self.loads if load.key == key != load.into)
        return [load.line for load in reads if load.into in self._in_turns]

    def matter_at(self, key: Key) -> list[int]:
        """The lines in which the variable is read for something that matters."""
        return [load.line for load in self.loads if load.key == key and load.into in self._matters]

    def in_losses_at(self, key: Key) -> list[int]:
        """The lines in which the variable is read for the losses of turns."""
        return self._lines_in_losses.get(key, [])


def reached(loads: Sequence[VariableRead], ends: set[Key]) -> set[Key]:
    """All keys that flow into these by the reads, found against the direction of the flow."""
    sources: dict[Key, set[Key]] = defaultdict(set)
    for load in loads:
        sources[load.into].add(load.key)
    found, new = set(ends), list(ends)
    while new:
        more = sources[new.pop()] - found
        found |= more
        new += more
    return found
