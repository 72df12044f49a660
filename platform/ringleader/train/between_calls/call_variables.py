"""The program's variables as a session call begins, as texts that are compared.

Those of the running functions and of the objects in them, what says which rows a data set has, and the session's own
state where the program's lines may have changed it.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ringleader.program_text.current_line import running_frames, running_lines
from ringleader.program_text.dataset_caches import kept_rows, reads_rows
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import Key
from ringleader.train.between_calls.boundaries import MODELS, CallBoundary
from ringleader.train.between_calls.data_parts import data_parts
from ringleader.train.between_calls.findings import BODY_CURE
from ringleader.train.between_calls.objects.joined_flows import JoinedFlows
from ringleader.train.between_calls.objects.library_objects import HOLDERS
from ringleader.train.between_calls.objects.program_objects import (
    ProgramObject,
    files_of,
    is_users,
    is_within,
    objects_in,
    values_of,
)
from ringleader.train.between_calls.objects.value_kinds import KIND
from ringleader.train.between_calls.value_fingerprints import ValueReader, is_generator
from ringleader.train.state.optimizers.own_attributes import COMMITTED, OF_TORCH
from ringleader.train.state.training_state import TrainingState

CURE = (
    "compute it from session.params, session.loss or the result of session.evaluate, seed generators, and keep state "
    "from outside of the program with session.keep(name, object)"
)
DATA_CURE = (
    "a row's number must mean the same row on every worker: seed the generator that splits or shuffles, and sort what "
    "a folder or a set lists"
)
IN_PLACE_CURE = (
    f"give a buffer or weight its values with copy_, not by assignment, and keep a clone() of it; else {CURE}"
)
NOTHING = repr(None)
"""The text of None: what a data set opens at its first read is None until then, on some members for ever."""
Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Spot:
    """The place of a variable: a frame, the text of its file, and the name there."""

    frame: FrameType
    text: SourceText
    name: str


class CallVariables:
    """The variables at one call.

    Args:
        held: the session's own objects.
        known: the texts of large values that were read before, see `ValueReader`.
        lines_before: the line at which each function stood at the call before.
        passing: attributes that turns set before they read them.
        only: the variables and attributes to read; None for all.

    Attributes:
        texts: by name.
        lines: by name, "file:line" of what set it, and the cure where it differs.
    """

    def __init__(
        self,
        held: TrainingState,
        known: Any,
        lines_before: Mapping[CodeType, int],
        passing: Collection[str] = (),
        only: Collection[Key] | None = None,
    ) -> None:
        self._only = only
        self._held = held
        self._known = known
        self._reader = ValueReader(held, known)
        self._lines_before = lines_before
        self._frames = list(running_frames())
        self._passing = passing
        self._seen: set[int] = set()
        self._objects: list[tuple[_Spot, ProgramObject]] = []
        self._read_ids: set[int] = set()
        self.texts: Texts = {}
        self.lines: dict[str, tuple[str, str]] = {}

    def add_variables(self, dataset: Any) -> None:
        """Read those of the running functions, and what says which rows the call goes over.

        Args:
            dataset: whose rows these are; None where the call has none.
        """
        for frame in self._frames:
            text = text_of(frame.f_code.co_filename)
            if text is not None and frame.f_code.co_name != "<module>":
                self._add_frame(frame, text)
        self._add_objects()
        self._add_data(dataset)

    def add_state(self, before: CallBoundary | None) -> None:
        """Read the session's state as the lines left it: settings, small kept objects, weights that were touched.

        Args:
            before: the boundary on which the lines began; None where nothing is recorded of it.
        """
        held = self._held
        for place, (optimizer, _) in enumerate(held.optimizers):
            which = f"optimizers[{place}]" if len(held.optimizers) > 1 else "optimizer"
            for group_number, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key != "params":
                        self._add(f"{which}.param_groups[{group_number}][{key!r}]", key, value, self._reader)
        if before is None:
            return
        for name in before.kept.keys() & held.kept.keys():
            self._add(f"the kept object {name!r}", name, dict(held.kept[name].state_dict()), self._reader)
        if MODELS in before.tensors:
            everything = ValueReader(type(held)(), self._known)  # weights too
            for place, model in enumerate(held.models):
                for name, value in model.state_dict().items():
                    self._add(f"the weights {place}.{name}", name, value, everything)

    def _add_frame(self, frame: FrameType, text: SourceText) -> None:
        scope, flows = text.scope_at(frame.f_lineno), JoinedFlows([text])
        variables = [(scope.key(name), value) for name, value in frame.f_locals.items()]
        for name, (key, value) in zip(list(frame.f_locals), variables, strict=True):
            self._add_one(_Spot(frame, text, name), key, value)
            entries = text.entries_of(key) if isinstance(value, dict) else {}
            for entry, its in entries.items():
                self._add_one(_Spot(frame, text, f"{name}[{entry!r}]"), its, value.get(entry))
            has_say = name == "self" or flows.has_say(key)
            inside_too = is_users(value) and not text.only_shown(key, frame.f_lineno)
            for shown, inside, part in alike_values(value) if inside_too else ():
                spot = _Spot(frame, text, name + shown)
                # A view of the weights affects training whoever holds it.
                if has_say or self._may_have_changed(spot, inside):
                    self._add_one(spot, inside, part)
        for name in _globals_of(text, scope.name):
            value = frame.f_globals.get(name)
            variables.append((("", name), value))
            if name in text.changing_globals or is_generator(value) or isinstance(value, HOLDERS):
                self._add_one(_Spot(frame, text, name), ("", name), value)
        for each in objects_in(variables, self._is_left_out, seen=self._seen):
            self._objects.append((_Spot(frame, text, each.name), each))

    def _add_objects(self) -> None:
        """Read the values of objects further away, of files, classes and functions, by all texts that may use them."""
        files = {frame.f_code.co_filename for frame in self._frames}
        files |= {file for _, each in self._objects for file in files_of(each.value)}
        flows = JoinedFlows((text for text in map(text_of, files) if text is not None), running_lines())
        running = {frame.f_code.co_qualname for frame in self._frames}
        for spot, each in self._objects:
            # What such a function has around it are variables of running functions.
            around = each.value.__code__.co_freevars if is_within(each.value, running) else ()
            for shown, key, part in alike_values(each.value):
                if shown.removeprefix(":") in around or not self._may_differ(spot, key, each.value):
                    continue
                if flows.matters(key, each.keys) or _default_matters(each, key, part, flows):
                    line = flows.line_of(key, spot.text) or place_of(spot.frame, spot.frame.f_lineno)
                    given_on = flows.is_given_on(key)
                    name = f"{spot.frame.f_code.co_qualname}:{each.name}{shown}"
                    self._add_value(name, part, (line, CURE), given_on=given_on)

    def _may_differ(self, spot: "_Spot", key: Key, owner: Any) -> bool:
        line = spot.frame.f_lineno
        if self._only is not None and key not in self._only:
            return False
        if isinstance(owner, nn.Module):
            # Forwards leave what they want there: only what the program's lines set is compared.
            return key in spot.text.flows.sets and spot.text.compared(key, line)
        return key[1].lstrip(".") not in self._passing and not spot.text.passes(key, line)

    def _add_value(self, shown: str, value: Any, line: tuple[str, str], *, given_on: bool) -> None:
        for name, told in self._told(shown, value, given_on=given_on) if shown not in self.lines else ():
            self.texts[name], self.lines[name] = told, line

    def _told(self, shown: str, value: Any, *, given_on: bool) -> Iterator[tuple[str, str]]:
        """The texts of a value with their names, that of which function or class it is only where something is made of
        what it gives."""
        reader = self._reader
        if given_on or not isinstance(value, FunctionType):
            text = reader.text(value)
            yield from [(shown, text)] if text is not None else []
        kind = reader.kind(value, self._passing) if given_on else None
        yield from [(shown + KIND, kind)] if kind is not None else []

    def _is_left_out(self, value: Any) -> bool:
        if isinstance(value, nn.Module):
            return any(value is each for each in self._held.kept.values())
        return self._reader.is_left_out(value)

    def _add_data(self, dataset: Any) -> None:
        """Read what says which rows the data set has, where no variable does."""
        frames = self._frames
        variables = {name: value for frame in reversed(frames) for name, value in frame.f_locals.items()}
        names = {id(value): name for name, value in reversed(variables.items())}
        for shown, part in data_parts(dataset, names) if frames else ():
            if shown in self.lines or id(part) in self._read_ids:
                continue
            told = self._reader.text(part)
            if told is not None:
                self.texts[shown] = told
                self.lines[shown] = (place_of(frames[0], frames[0].f_lineno), DATA_CURE)

    def _add_one(self, spot: "_Spot", key: Key, value: Any) -> None:
        if self._only is not None and key not in self._only:
            return
        # What changes a view of the weights affects training, even where nothing reads the variable.
        if not spot.text.compared(key, spot.frame.f_lineno) and not (
            self._may_have_changed(spot, key) and self._reader.shows_weights(value)
        ):
            return
        code, flows = spot.frame.f_code, spot.text.flows
        line = f"{Path(code.co_filename).name}:{spot.text.line_of(key, spot.frame.f_lineno)}"
        told = list(self._told(f"{code.co_qualname}:{spot.name}", value, given_on=flows.is_given_on(key)))
        outside = IN_PLACE_CURE if self._reader.met_weights else CURE
        cure = BODY_CURE if key in spot.text.inside else outside
        for name, text in told:
            self.texts[name], self.lines[name] = text, (line, cure)
        if told and isinstance(value, list | dict | torch.Tensor):
            self._read_ids.add(id(value))

    def _may_have_changed(self, spot: "_Spot", key: Key) -> bool:
        frame, before = spot.frame, self._lines_before.get(spot.frame.f_code, 0)
        return spot.text.augmented.may_have_run(key, frame.f_code, before, frame.f_lineno)

    def _add(self, shown: str, key: str, value: Any, reader: ValueReader) -> None:
        told = reader.text(value)
        if told is not None:
            self.texts[shown] = told
            self.lines[shown] = (_line_of_item(key, self._frames), CURE)


def _default_matters(each: ProgramObject, key: Key, part: Any, flows: JoinedFlows) -> bool:
    """Whether it is a list or dict that a function has as a default, and that has a say. A function that is only called
    has none itself; of a lambda its name tells, as its parameters are no variables of the text."""
    function = each.value
    if not isinstance(function, FunctionType) or not isinstance(part, dict | list | set | deque):
        return False
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not any(part is default for default in given):
        return False
    return any(map(flows.matters, each.keys if function.__name__ == "<lambda>" else [key]))


def _line_of_item(key: str, frames: list[FrameType]) -> str:
    """The place that stores under that key in the running functions, else the line that runs."""
    if not frames:
        return "the end of the program"
    for frame in frames:
        text = text_of(frame.f_code.co_filename)
        line = text.line_of_item(key, frame.f_lineno) if text is not None else 0
        if line:
            return place_of(frame, line)
    return place_of(frames[0], frames[0].f_lineno)


def place_of(frame: FrameType, line: int) -> str:
    """The place of a line in that function's file, as "file:line"."""
    return f"{Path(frame.f_code.co_filename).name}:{line}"


@lru_cache(maxsize=256)
def _globals_of(text: SourceText, scope: str) -> frozenset[str]:
    """The names in a function's text, and in those of the functions that it calls."""
    return frozenset(text.names_in(text.reached_from({scope})))


def alike_values(value: Any) -> Iterator[tuple[str, Key, Any]]:
    """The values of an object that every member has alike."""
    kind: Any = type(value)
    reads, kept = reads_rows(kind), kept_rows(kind)
    # State and settings of an optimizer are committed, and differ by member where servers have them.
    kept = kept | (COMMITTED | OF_TORCH if isinstance(value, Optimizer) else frozenset())
    for shown, key, part in values_of(value):
        # A data set's generator is seeded for each slice.
        if key[1].lstrip(".") not in kept and not (reads and is_generator(part)):
            yield shown, key, part
