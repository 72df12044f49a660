"""Modules that only tell people something: metrics with counts in buffers or attributes, filled and shown by a body.

Such a one has no parameters, and nothing flows from where the program has it to what training depends on, nor do its
methods that are called there do anything to others.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from ringleader.program_text.current_line import running_frames
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import Key
from ringleader.train.between_calls.objects.joined_flows import JoinedFlows
from ringleader.train.between_calls.objects.program_objects import (
    attributes_of,
    file_of,
    files_of,
    objects_in,
    of_program,
)
from ringleader.train.body.turn_state.turn_attributes import MOST_DEPTH, in_reach

_IN_CONTAINERS = 2
"""The depth of lists and dicts in which a module is looked for."""


class ShownModules:
    """The answers for one loop, in which the program stands where it asks for a slice.

    Args:
        models: those that are registered.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = {id(model) for model in models}
        self._answers: dict[int, bool] = {}

    def has(self, module: nn.Module) -> bool:
        """Whether the module is only filled and shown."""
        if id(module) not in self._answers:
            plain = id(module) not in self._models and next(module.parameters(), None) is None
            self._answers[id(module)] = plain and _is_shown(module)
        return self._answers[id(module)]

    def reads(self, module: nn.Module, attribute: str) -> bool:
        """Whether lines outside of its class read an attribute of that name for something that matters."""
        texts = {text_of(file_of(each.__module__)) for each in type(module).__mro__}
        texts |= {text_of(frame.f_code.co_filename) for frame in running_frames()}
        names = {each.__name__ for each in type(module).__mro__}
        return any(_reads_outside(text, names, attribute) for text in texts if text is not None)


def _reads_outside(text: SourceText, classes: set[str], attribute: str) -> bool:
    lines = text.flows.matter_at(("", f".{attribute}"))
    return any(text.scope_at(line).name not in classes for line in lines)


def _is_shown(module: nn.Module) -> bool:
    variables = [
        (text.scope_at(frame.f_lineno).key(name), value)
        for frame in running_frames()
        if (text := text_of(frame.f_code.co_filename)) is not None
        for name, value in in_reach(frame).items()
    ]
    objects = [each.value for each in objects_in(variables, lambda _: False, depth=MOST_DEPTH)]
    files = {file for each in objects for file in files_of(each)}
    files |= {frame.f_code.co_filename for frame in running_frames()}
    flows = JoinedFlows(text for text in map(text_of, files) if text is not None)
    acting = flows.acting_methods([each.__name__ for each in type(module).__mro__])
    named = [each for each in variables if each[0][1] != "self"]  # it stands for whatever its class does
    ways = list(_ways(module, named, objects, MOST_DEPTH))
    return bool(ways) and not any(way is None or flows.gives(way, acting) for way in ways)


def _ways(
    module: nn.Module, variables: Sequence[tuple[Key, Any]], objects: Sequence[Any], depth: int
) -> Iterator[Key | None]:
    """The variables and attributes that hold the module, or a container with it; None for one without a name."""
    yield from (key for key, value in variables if _holds(value, module, _IN_CONTAINERS))
    for each in objects:
        if each is not module and not isinstance(each, type):
            held = attributes_of(each).items()
            yield from (("", f".{name}") for name, value in held if _holds(value, module, _IN_CONTAINERS))
        children = dict(each.named_children()) if isinstance(each, nn.Module) else {}
        for name in (name for name, child in children.items() if child is module):
            if of_program(type(each).__module__):
                yield "", f".{name}"
            elif depth:
                yield from list(_ways(each, variables, objects, depth - 1)) or [None]
            else:
                yield None


def _holds(value: Any, module: nn.Module, depth: int) -> bool:
    if value is module:
        return True
    items = list(value.values()) if isinstance(value, dict) else value
    return (
        bool(depth) and isinstance(items, list | tuple) and any(_holds(e, module, depth - 1) for e in items)
    )
