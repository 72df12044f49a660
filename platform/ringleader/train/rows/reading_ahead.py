"""Whether the rows of a step may be read before the step before it is committed, while its sums are exchanged.

They may not where they go by training: a data set or a `collate` that asks the session for its step or its loss, reads
weights or a rate, or has a level that a callback raises. Which slices are read early depends on who computes what.
"""

from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ringleader.train.rows.dataset_likeness import reaches
from ringleader.train.state.training_state import TrainingState

_DEFINITIONS = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)


def may_read_ahead(sources: tuple[Any, ...], session: object, held: TrainingState) -> bool:
    """Whether nothing that training changes is in reach of these sources of rows, nor they in that of a callback.

    Args:
        sources: the data set and its `collate`.
        session: the program's.
        held: what it has registered.
    """
    trained = {id(each) for each in _trained(held)} | {id(session)}
    own: set[int] = set()
    if reaches(sources, lambda part: id(part) in trained or _note(part, own)):
        return False
    return not reaches(held.callbacks, lambda part: id(part) in own)


def _note(part: Any, own: set[int]) -> bool:
    if not isinstance(part, _DEFINITIONS):
        own.add(id(part))
    return False


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
