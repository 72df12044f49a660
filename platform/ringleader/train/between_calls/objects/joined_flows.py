"""The flow of values through several files of a program, as if they were one."""

import ast
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from ringleader.program_text.loop_bodies import SourceText
from ringleader.program_text.program_scope import Key
from ringleader.program_text.value_flow import ValueFlow
from ringleader.program_text.variables.objects_with_say import ObjectsWithSay
from ringleader.program_text.variables.tables import filled_tables


class JoinedFlows:
    """What affects training, by the texts of all these files.

    A method of one file is known in another one by its name, so that what it only shows does not matter there.

    Args:
        running: the line that runs, by file: other programs of the file have bodies of their own.
    """

    def __init__(self, texts: Iterable[SourceText], running: Mapping[str, int] | None = None) -> None:
        self._texts = frozenset(texts)
        self._running = running or {}

    def matters(self, key: Key, way: Collection[Key] = ()) -> bool:
        """Whether a value of the variable affects training. No file: it may.

        Args:
            way: the variables by which an object is reached that has it as an attribute. One of them has to matter,
                too, as other objects have attributes of that name.
        """
        if not self._texts:
            return True
        flow, hidden = (
            _joined(self._texts),
            any(text.only_shown(key, self._running.get(text.file, 0)) for text in self._texts),
        )
        return (
            not hidden
            and not self.is_table(key)
            and flow.matters(key)
            and (not way or any(map(self.has_say, way)))
        )

    def is_given_on(self, key: Key) -> bool:
        """See `ValueFlow.is_given_on`. No file: it may be."""
        return not self._texts or _joined(self._texts).is_given_on(key)

    def is_table(self, key: Key) -> bool:
        """Whether it is a dict that is filled as a table, wherever these files use it."""
        return key in _tables(self._texts)

    def has_say(self, key: Key, *, by_methods: bool = False) -> bool:
        """Whether the variable may hold an object with a say in training. No file: it may.

        Args:
            by_methods: also by what its methods do to others, as far as their names tell.
        """
        return not self._texts or _say(self._texts).may_be(key, by_methods=by_methods)

    def acting_methods(self, classes: Collection[str]) -> set[str]:
        """The methods of an object, whose class and bases have these names, that do more than to change it."""
        others = _say(self._texts).acting if self._texts else set()
        # Each file by itself: lines of several have the same numbers.
        found = (_say(frozenset([text])).acting_methods(classes, others) for text in self._texts)
        return set().union(*found)

    def gives(self, key: Key, acting: Collection[str]) -> bool:
        """Whether more is done with an object that the variable holds than to fill and to show it. No file: it may.

        Args:
            acting: its methods that do something to others.
        """
        return not self._texts or _say(self._texts).gives(key, acting)

    def in_losses(self, key: Key) -> bool:
        """Whether a value of the variable goes into the loss of a turn."""
        return bool(self._texts) and bool(_joined(self._texts).in_losses_at(key))

    def line_of(self, key: Key, first: SourceText | None = None) -> str:
        """ "file:line" of what sets the variable last, in the first file if that does; empty where none does."""
        for text in (first, *sorted(self._texts, key=lambda each: each.file)):
            if text is not None and text.flows.sets.get(key):
                return f"{text.name}:{max(text.flows.sets[key])}"
        return ""


@lru_cache(maxsize=32)
def _tables(texts: frozenset[SourceText]) -> frozenset[Key]:
    return next(iter(texts)).tables if len(texts) == 1 else filled_tables(_joined(texts))


@lru_cache(maxsize=32)
def _say(texts: frozenset[SourceText]) -> ObjectsWithSay:
    return ObjectsWithSay(_joined(texts))


@lru_cache(maxsize=32)
def _joined(texts: frozenset[SourceText]) -> ValueFlow:
    if len(texts) == 1:
        return next(iter(texts)).flows
    ordered = sorted(texts, key=lambda each: each.file)
    return ValueFlow(ast.Module([statement for text in ordered for statement in text.parted.body], []))
