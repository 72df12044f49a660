"""State that a loop's body carries from one turn to the next, seen at the begins of turns.

A worker's turns are those of its slices. State that one passes to the next (a hidden state, a counter of turns, a queue
of features, a generator that has drawn) depends on who computes what, unless the session has it.
"""

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from inspect import CO_GENERATOR
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ringleader.program_text.current_line import running_frames
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import Key
from ringleader.program_text.variables.apart import plain
from ringleader.program_text.variables.collected import NEXT
from ringleader.train.between_calls.call_variables import place_of
from ringleader.train.between_calls.findings import CARRIED_CURE, VariableFinding
from ringleader.train.between_calls.hook_outputs import carried_of_hooks
from ringleader.train.between_calls.objects.program_objects import attributes_of, is_users
from ringleader.train.between_calls.value_fingerprints import ValueReader, is_generator
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.body.turn_state.hook_values import HookValues
from ringleader.train.body.turn_state.row_findings import finding_of, stale_rows_of
from ringleader.train.body.turn_state.shown_modules import ShownModules
from ringleader.train.body.turn_state.turn_attributes import MISSING, HeldAttribute, TurnAttributes, in_reach
from ringleader.train.body.turn_state.turn_values import TurnValues
from ringleader.train.generation.context import MemberContext
from ringleader.train.rows.random_streams import generators_of, own_generators
from ringleader.train.state.hidden_state import looked_at
from ringleader.train.state.parameters.committed_memory import CommittedMemory
from ringleader.train.state.parameters.tensor_fingerprint import WHOLE_BYTES, fingerprint
from ringleader.train.state.parameters.tensor_version import version_of
from ringleader.train.state.training_state import TrainingState

HOW = "is carried from one turn of a loop's body to the next"
HOOK_HOW = "is carried from one call of a hook to the next"
MODULE_HOW = "is a model that is not registered, and changes in a loop's body"
MODULE_CURE = (
    "register it with session.model, where buffers keep the values of the first slice; update averaged weights in an "
    "on_commit callback, and register them with session.keep; call eval() on a model that is only used for inference"
)
GENERATOR_HOW = "is drawn from in a loop's body"
GENERATOR_CURE = "use the global generators of torch, numpy or random, which are seeded for each slice"
MOST_DEPTH = 3

_Marks = dict[str, tuple[Any, VariableFinding]]


class CarriedState:
    """The watch over one member's carried state. Called from its training thread."""

    def __init__(self, context: MemberContext, variables: ProgramVariables) -> None:
        self._context = context
        self._variables = variables
        self._matters = context.same_bits
        self._turns = 0
        self._before: _Marks = {}
        self._known: set[int] = set()
        self._attributes: list[TurnAttributes] = []
        self._found: TurnValues | None = None
        self._hooked: HookValues | None = None
        self._dataset: Any = None
        self._by_steps = False
        self._copies = WeakKeyDictionary[nn.Module, int]()
        self._numbers = count()
        self._shown = ShownModules(())

    def begin_loop(self, dataset: Any, *, by_steps: bool) -> None:
        """Begin a loop over these rows, or over the steps of them: lines before it may have changed anything."""
        self._before, self._found, self._dataset, self._by_steps = {}, None, dataset, by_steps
        self._hooked = None
        self._shown = ShownModules(self._context.held.models)
        self._known = {id(part) for part in _known(self._context.held, dataset)}
        self._attributes = list(self._attributes_of_turns()) if self._matters else []
        for each in self._attributes:
            each.leave_out(self._is_shown)
        self._variables.passing.update(*(each.passing for each in self._attributes))

    def _is_shown(self, each: HeldAttribute) -> bool:
        holder = each.holder
        return isinstance(holder, nn.Module) and self.only_shows(holder, each.attribute)

    def reads_on(self, dataset: Any, collate: Any, path: str) -> None:
        """Hear of an iterator that goes on with the rows that are read, and report it before a step goes by it."""
        finding = finding_of(dataset, collate, path) if self._matters else None
        if finding is not None:
            self._variables.find(finding)

    def reads_stale(self, dataset: Any, collate: Any) -> None:
        """Hear of rows that loading processes read otherwise than this thread, and report them before a step goes by
        them."""
        if self._matters:
            self._variables.find(stale_rows_of(dataset, collate))

    def passes(self, attribute: str) -> bool:
        """Whether the turns of the running loop set that attribute before they read it."""
        return any(attribute in each.passing for each in self._attributes)

    def only_shows(self, module: nn.Module, attribute: str) -> bool:
        """Whether the module, a part of a registered model, is filled and shown, and nothing else reads that attribute
        of it."""
        return self._shown.has(module) and not self._shown.reads(module, attribute)

    def begin_turn(self) -> None:
        """Look at the state before the body gets a slice: differences since its last slice are the body's changes."""
        if not self._matters:
            return
        # Full looks come in pairs: only beside one of the turn before does a full look show changes.
        now = self._look(everything=looked_at(self._turns) or looked_at(self._turns + 1))
        self.end_turn()  # what loads the next slice may have changed something, too
        self._found = self._find_values() if looked_at(self._turns) else None
        self._hooked = HookValues(self._set_by_hooks()) if looked_at(self._turns) else None
        self._turns += 1
        for name, (mark, finding) in now.items():
            if name in self._before and self._before[name][0] != mark:
                self._variables.find(finding)
        self._before = now

    def end_turn(self) -> None:
        """Compare what the turn found with what it leaves, once the body comes for its next slice."""
        changed = self._found.changed() if self._found is not None else ()
        left = self._hooked.left() if self._hooked is not None else ()
        for each in (*changed, *left):
            if each.name not in self._variables.found:
                self._variables.find(VariableFinding(each.name, each.line, CARRIED_CURE, HOW))
        self._hooked = None
        if self._by_steps:
            self._found = None  # what lines after a step change, all members change alike

    def _set_by_hooks(self) -> list[HeldAttribute]:
        return [each for loop in self._attributes for each in loop.hooked]

    def _find_values(self) -> TurnValues:
        read = [each for loop in self._attributes for each in loop.read]
        tables = [each for loop in self._attributes for each in loop.tables]
        return TurnValues(self._context.held, read, tables, self._dataset, self._known)

    def _look(self, *, everything: bool) -> _Marks:
        marks = self._handed_on()
        for frame in running_frames():
            text = text_of(frame.f_code.co_filename)
            if text is not None and frame.f_code.co_flags & CO_GENERATOR:
                # It goes on when the next slice is asked for, and stands at the line that does so.
                for key, line in text.carried_by_generator(frame.f_lineno).items():
                    marks |= self._variable(frame, text, key, line)
            if text is None or not (everything or text.carried):
                continue
            for key in text.carried_in(text.scope_at(frame.f_lineno)):
                marks |= self._variable(frame, text, key, text.carried[key].line)
            if everything:
                marks |= self._objects(frame, text)
        return marks | (self._hooks() if everything else {})

    def _attributes_of_turns(self) -> Iterator[TurnAttributes]:
        kept = {id(part) for each in self._context.held.kept.values() for part in _held_by(each, MOST_DEPTH)}
        through: dict[str, Any] = {}
        for frame in running_frames():
            text = text_of(frame.f_code.co_filename)
            loop = None if text is None else text.loop_at(frame.f_lineno)
            if text is not None and loop is not None:
                yield TurnAttributes(text, loop, through | in_reach(frame), kept)
            giving = frame.f_code.co_flags & CO_GENERATOR or frame.f_code.co_name == NEXT
            owner = in_reach(frame).get("self") if giving else None
            # An iterator around the batches, which may have no name in the loop's function.
            if owner is not None:
                through[f"{type(owner).__name__}()"] = owner

    def _handed_on(self) -> _Marks:
        """Attributes that turns read before they set them; not what cannot be read, nor what has been found."""
        found = self._variables.found
        watched = [each for loop in self._attributes for each in loop.handed_on if each.name not in found]
        if not watched:
            return {}
        reader, committed = ValueReader(self._context.held, {}), CommittedMemory(self._context.held.models)
        marks: _Marks = {}
        for each in watched:
            value = each.value
            if isinstance(value, Tensor) and committed.has(value):
                continue
            graph = isinstance(value, Tensor) and value.grad_fn is not None
            mark: Any
            if each.in_forward and id(each.holder) in self._known and not graph:
                # `HiddenState` sees it, but that a list has grown.
                mark = len(value) if isinstance(value, list | deque | set) else None
            elif isinstance(value, Tensor):
                mark = _mark_of_tensor(value)
            else:
                mark = None if value is MISSING else reader.text(value)
            if mark is not None:
                marks[f"{id(each.holder)} .{each.attribute}"] = (
                    mark,
                    VariableFinding(each.name, each.line, CARRIED_CURE, HOW),
                )
        return marks

    def _hooks(self) -> _Marks:
        """Variables from which hooks of the models go on, call by call."""
        return {
            f"{id(hook)} {name}": (
                self._mark(value),
                VariableFinding(
                    name, f"{Path(hook.__code__.co_filename).name}:{line}", CARRIED_CURE, HOOK_HOW
                ),
            )
            for hook, name, line, value in carried_of_hooks(self._context.held.models)
        }

    def _variable(self, frame: FrameType, text: SourceText, key: Key, changed: int) -> _Marks:
        line, values = place_of(frame, changed), list[Any]()
        name = plain(key[1])
        told = name.lstrip(".")
        if told in self._variables.found:
            return {}
        if name.startswith("."):
            values = [value for each, value in _named(frame) if each.endswith(name)]
        else:
            with suppress(KeyError, TypeError):
                values = [text.find(key, in_reach(frame), frame.f_lineno)[1]]
        return {
            f"{id(frame)} {name}": (self._mark(value), VariableFinding(told, line, CARRIED_CURE, HOW))
            for value in values[:1]
        }

    def _objects(self, frame: FrameType, text: SourceText) -> _Marks:
        """Generators and models that the session does not have."""
        marks: _Marks = {}
        for name, value in _named(frame):
            if id(value) in self._known:
                continue
            attribute = name.rpartition(".")[2]
            key = ("", f".{attribute}") if "." in name else text.scope_at(frame.f_lineno).key(name)
            line = place_of(frame, text.line_of(key, frame.f_lineno))
            if is_generator(value):
                marks[f"{id(frame)} {name}"] = (
                    self._mark(value),
                    VariableFinding(name, line, GENERATOR_CURE, GENERATOR_HOW),
                )
            elif isinstance(value, nn.Module) and not self._shown.has(value):
                mark = _mark_of_module(value, self._known)
                place = f"{id(frame)} {name}"
                if text.makes_anew(key, frame.f_lineno):
                    # The copy of another turn (`fast = copy.deepcopy(net)`) is another model.
                    place += f" {self._copies.setdefault(value, next(self._numbers))}"
                marks[place] = (mark, VariableFinding(name, line, MODULE_CURE, MODULE_HOW))
        return marks

    def _mark(self, value: Any) -> Any:
        """A mark that differs once the value has changed; that of a value that cannot be read differs in each turn."""
        if isinstance(value, Tensor):
            return _mark_of_tensor(value)
        told = ValueReader(self._context.held, {}).text(value)
        return self._turns if told is None else told


def _known(held: TrainingState, dataset: Any) -> Iterator[Any]:
    """Objects that the session takes care of: the models and their tensors, kept objects with their contents, and
    generators that are seeded for each slice."""
    for model in held.models:
        yield from model.modules()
        yield from model.parameters()
    yield from (generator for _, generator in generators_of(held.models))
    for owner in (dataset, *(optimizer for optimizer, _ in held.optimizers)):
        yield from (generator for _, generator in own_generators(owner))
    for kept in held.kept.values():
        yield from _held_by(kept, MOST_DEPTH)


def _held_by(part: Any, depth: int) -> Iterator[Any]:
    yield part
    if isinstance(part, nn.Module):
        yield from part.modules()
    elif depth:
        inside: Collection[Any] = vars(part).values() if hasattr(part, "__dict__") else ()
        if isinstance(part, dict | list | tuple):
            inside = part.values() if isinstance(part, dict) else part
        for each in inside:
            yield from _held_by(each, depth - 1)


def _named(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The function's variables, the globals that it names, and the attributes of the program's own objects in them."""
    for name, value in in_reach(frame).items():
        yield name, value
        if is_users(value):
            yield from ((f"{name}.{attribute}", part) for attribute, part in attributes_of(value).items())


def _mark_of_module(module: nn.Module, known: set[int]) -> tuple[Any, ...]:
    parts = [part for part in module.modules() if id(part) not in known]
    tensors = (t for part in parts for t in (*part._parameters.values(), *part._buffers.values()))
    return tuple(_mark_of_tensor(t) for t in tensors if t is not None and id(t) not in known)


def _mark_of_tensor(tensor: Tensor) -> tuple[int, int, bytes]:
    # What changes it through `.data` counts in no version; of a model that is not registered some tensors are small.
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not is_lazy(tensor)
    small = plain and tensor.nbytes <= WHOLE_BYTES
    return id(tensor), version_of(tensor), fingerprint(tensor) if small else b""
