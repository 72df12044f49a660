"""Whether the rows of a step may be read before the step before it is committed, while its sums are exchanged.

They may not where they go by training: a data set or a `collate` that asks the session for its step or its loss, reads
weights or a rate, or has a level that a callback raises: an attribute, an item, a global or an enclosing variable.
Which slices are read early depends on who computes what.
"""

from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ringleader.program_text.variables.stored_names import read_names, stored_names
from ringleader.train.between_calls.objects.step_functions import functions_of_steps
from ringleader.train.rows.dataset_likeness import reaches
from ringleader.train.state.training_state import TrainingState

_DEFINITIONS = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)


def may_read_ahead(sources: tuple[Any, ...], session: object, held: TrainingState) -> bool:
    """Whether nothing that training changes is in reach of these sources of rows, nor they in that of what runs with
    a commit.

    Args:
        sources: the data set and its `collate`.
        session: the program's.
        held: what it has registered.
    """
    trained = {id(each) for each in _trained(held)} | {id(session)}
    read = _RowReads()
    if reaches(sources, lambda part: id(part) in trained or read.note(part)):
        return False
    return not reaches(functions_of_steps(held), read.are_changed_by)


class _RowReads:
    """What is in reach of the sources of rows: objects, and the names of variables and attributes."""

    def __init__(self) -> None:
        self._objects: set[int] = set()
        self._names: set[str] = set()

    def note(self, part: Any) -> bool:
        """Add an object, or what a function names. Returns False: the search goes on."""
        if isinstance(part, CodeType):
            self._names.update(read_names(part))
        elif not isinstance(part, _DEFINITIONS):
            self._objects.add(id(part))
        return False

    def are_changed_by(self, part: Any) -> bool:
        """Whether it is one of the objects, or a function that sets one of the names: numbers, functions and classes
        that are in reach of both say nothing, as whoever sets a variable gives it another one."""
        if isinstance(part, CodeType):
            return not self._names.isdisjoint(stored_names(part))
        return id(part) in self._objects


def _trained(held: TrainingState) -> Iterator[Any]:
    for model in held.models:
        yield from model.modules()
        yield from model.parameters()
        yield from model.buffers()
    for optimizer, _ in held.optimizers:
        yield optimizer
        yield from optimizer.param_groups
    yield from held.schedulers
    yield from held.kept.values()
