"""Values that go into the losses of a loop's turns as they find them, compared before and behind a turn.

The text shows most of what a turn changes (`carried_state.py`). It does not show what library functions, views, default
arguments and generators do: `heapq.heappush(seen, loss)`, `numpy.add.at(counts, labels, 1)`, `average.send(loss)`. So
whatever a turn reads before it sets it is looked at, however it is changed.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from ringleader.program_text.carrying_hooks import read_as_left
from ringleader.program_text.current_line import BELOW, running_frames
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import Key
from ringleader.program_text.variables.apart import plain
from ringleader.train.between_calls.call_variables import place_of
from ringleader.train.between_calls.data_parts import whole_parts
from ringleader.train.between_calls.objects.joined_flows import JoinedFlows
from ringleader.train.between_calls.objects.program_objects import files_of, held_by, is_users, objects_in
from ringleader.train.between_calls.value_fingerprints import ValueReader
from ringleader.train.body.turn_state.turn_attributes import MISSING, HeldAttribute, in_reach
from ringleader.train.rows.random_streams import ATOMS
from ringleader.train.state.hidden_state import MANY
from ringleader.train.state.parameters.committed_memory import CommittedMemory
from ringleader.train.state.parameters.tensor_version import version_of
from ringleader.train.state.training_state import TrainingState

MOST_BYTES, READ_BYTES = 1 << 20, 1 << 16
"""The bound of all that is read at one look, and of a tensor; a larger one is told by its version."""
MOST_DEPTH = 2
MANY_PARTS = 64
"""The number of parts of a data set that are looked at."""


@dataclass(frozen=True, slots=True)
class TurnValue:
    """A value that a turn finds.

    Attributes:
        name: as a finding tells it.
        line: "file:line" of what reads it.
        read: gives what it is now; `MISSING` where there is nothing.
    """

    name: str
    line: str
    read: Callable[[], Any]


class TurnValues:
    """What one turn finds, and whether it leaves it so.

    Args:
        attributes: those that turns of the running loop read as they find them.
        tables: those of them that are filled as tables.
        dataset: that of the loop.
        known: what the session takes care of, by identity.
    """

    def __init__(
        self,
        held: TrainingState,
        attributes: Collection[HeldAttribute],
        tables: Collection[HeldAttribute],
        dataset: Any,
        known: Collection[int],
    ) -> None:
        self._reader = _MarkReader(held, known)
        self._looks = 0
        self._values = [TurnValue(each.name, each.line, _value_of(each)) for each in attributes]
        for each in tables:
            self._values += _entries(TurnValue(each.name, each.line, _value_of(each)))
        called = set(_names_of_functions(held))
        for frame in running_frames():
            text = text_of(frame.f_code.co_filename)
            if text is not None:
                self._values += _variables(frame, text, called)
                self._values += _of_functions(frame, text, called)
        self._data = list(islice(_of_data(dataset), MANY_PARTS))
        self._before = self._marks()

    def changed(self) -> list[TurnValue]:
        """Those that the turn has changed."""
        told = {each.name: each for each in reversed((*self._values, *self._data))}
        changed = [told[name] for name, mark in self._marks().items() if self._before.get(name, mark) != mark]
        # What the load of the next slice does to the data set, the body does not.
        self._data = []
        return changed

    def _marks(self) -> dict[str, str]:
        self._reader.begin()
        self._looks += 1
        found: dict[str, str] = {}
        for each in (*self._values, *self._data):
            value = each.read()
            if value is MISSING or isinstance(value, nn.Module):
                continue
            told = self._reader.text(value)
            if told is None and type(value).__module__ == "itertools":
                told = str(self._looks)  # to read one is to go on with it
            if told is not None:
                found.setdefault(each.name, told)
        return found


class _MarkReader(ValueReader):
    """A reader that reads little: a large tensor is told by its version.

    Args:
        known: what the session takes care of, by identity.
    """

    def __init__(self, held: TrainingState, known: Collection[int]) -> None:
        super().__init__(held, {}, MOST_BYTES)
        self._taken_care_of = known
        self._models, self._committed = held.models, CommittedMemory(held.models)

    def begin(self) -> None:
        """Begin another look."""
        self._left_bytes = MOST_BYTES
        self._committed = CommittedMemory(self._models)

    def is_left_out(self, value: Any) -> bool:
        # Numbers and texts are everybody's: kept objects have some, too.
        known = id(value) in self._taken_care_of and not isinstance(value, ATOMS)
        return known or super().is_left_out(value)

    def _tensor(self, tensor: Tensor) -> str | None:
        if self._committed.has(tensor):
            return None
        if tensor.device.type == "cpu" and tensor.nbytes <= READ_BYTES:
            return super()._tensor(tensor)
        return f"{id(tensor)} {version_of(tensor)}" if self._is_compared(tensor) else None


def _value_of(each: HeldAttribute) -> Callable[[], Any]:
    return lambda: each.value


def _variables(frame: FrameType, text: SourceText, called: Collection[str]) -> Iterator[TurnValue]:
    """The variables of a function that has the loop."""
    for key, line in text.read_first(frame.f_lineno).items():
        name = plain(key[1])
        if not name.startswith(".") and name not in called:
            value = TurnValue(name, f"{text.name}:{line}", _variable(frame, text, key))
            yield from _entries(value) if key in text.tables else [value]


def _entries(table: TurnValue) -> Iterator[TurnValue]:
    """The entries that a table has now. New entries are no change of it, and those that are gone are made again."""
    held = table.read()
    for key in list(islice(held, MANY)) if isinstance(held, dict) else ():
        yield TurnValue(f"{table.name}[{key!r}]", table.line, _entry(table, key))


def _entry(table: TurnValue, key: Any) -> Callable[[], Any]:
    return lambda: found.get(key, MISSING) if isinstance(found := table.read(), dict) else MISSING


def _variable(frame: FrameType, text: SourceText, key: Key) -> Callable[[], Any]:
    def read() -> Any:
        try:
            return text.find(key, in_reach(frame), frame.f_lineno)[1]
        except (KeyError, TypeError):
            return MISSING

    return read


def _of_functions(frame: FrameType, text: SourceText, called: Collection[str]) -> Iterator[TurnValue]:
    """What functions in reach of a function have in their closures, their defaults and as globals."""
    named = [(("", name), value) for name, value in in_reach(frame).items()]
    objects = objects_in(named, lambda value: isinstance(value, nn.Module), depth=MOST_DEPTH)
    functions = [function for each in objects for function in _functions_in(each.value)]
    files = {file for each in functions for file in files_of(each)}
    flows = JoinedFlows([text, *(other for other in map(text_of, files) if other is not None)])
    for function in functions:
        if function.__code__.co_filename.startswith(BELOW) or function.__name__ in called:
            continue
        for name, key, line in read_as_left(function.__code__):
            if name not in called and flows.in_losses(key):
                place = f"{Path(function.__code__.co_filename).name}:{line}"
                value = TurnValue(name, place, _held_value(function, name))
                yield from _entries(value) if flows.is_table(key) else [value]


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """A function, or the methods of an object's class."""
    if isinstance(value, FunctionType):
        yield value
    elif is_users(value):
        yield from (each for each in vars(type(value)).values() if isinstance(each, FunctionType))


def _held_value(function: FunctionType, name: str) -> Callable[[], Any]:
    return lambda: dict(held_by(function)).get(name, function.__globals__.get(name, MISSING))


def _of_data(dataset: Any) -> Iterator[TurnValue]:
    """The values that say which rows the data set has, but for those that reading them changes."""
    frames = list(running_frames())
    variables = [item for frame in frames for item in in_reach(frame).items()]
    names = {id(value): name for name, value in reversed(variables)}
    for name, part in whole_parts(dataset, names) if frames else ():
        yield TurnValue(name, place_of(frames[0], frames[0].f_lineno), partial(_itself, part))


def _itself(part: Any) -> Any:
    return part


def _names_of_functions(held: TrainingState) -> Iterator[str]:
    """The names of the callbacks that run once a step is committed, and of what they go by: that is compared where
    somebody comes later (`step_functions.py`)."""
    for each in held.callbacks:
        function = each.__func__ if isinstance(each, MethodType) else each
        if isinstance(function, FunctionType):
            yield function.__name__
            yield from (*function.__code__.co_freevars, *function.__code__.co_names)
