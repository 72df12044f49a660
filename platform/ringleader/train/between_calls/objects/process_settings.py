"""Changes of a program to its process while it trained: environment variables, functions of imported modules that
it has replaced, torch's defaults.

Nothing of it is an object of the program's, and no state has it: a worker that comes later has what its top has set.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.variables.lines_after_steps import SETTERS, ProcessChange, process_changes
from ringleader.train.between_calls.objects.program_objects import file_of, of_program
from ringleader.train.between_calls.value_fingerprints import ValueReader


def process_settings(
    namespaces: Iterable[tuple[str, dict[str, Any]]], reader: ValueReader
) -> Iterator[tuple[str, str, str]]:
    """Those that the texts of these files show to change: name, text of the value, and "file:line" of what sets it.

    Args:
        namespaces: files with the variables by which they name modules.
    """
    for file, variables in namespaces:
        text = text_of(file)
        for change in process_changes(text) if text is not None else ():
            told = _told(change, variables, reader)
            if told is not None and text is not None and _matters(change, variables, text):
                yield change.place, told, f"{Path(file).name}:{change.line}"


def _matters(change: ProcessChange, variables: dict[str, Any], text: SourceText) -> bool:
    """Whether training may go by it. Of globals of another file of the program those that are read for something there
    or here, and that no body sets: what bodies leave differs by worker."""
    module, name = _module_of(change, variables), change.place.rpartition(".")[2]
    if module is None or not of_program(module.__name__):
        return True
    own, as_attribute = text_of(file_of(module.__name__)), ("", f".{name}")
    read = text.flows.may_matter(as_attribute) or (own is not None and own.flows.may_matter(("", name)))
    return read and as_attribute not in text.inside


def _told(change: ProcessChange, variables: dict[str, Any], reader: ValueReader) -> str | None:
    if change.variable:
        return reader.text(os.environ.get(change.variable))
    owner, _, name = change.place.rpartition(".")
    if owner == "torch" and name in SETTERS:
        return repr(getattr(torch, SETTERS[name])())
    module = _module_of(change, variables)
    if module is None:
        return None
    value = getattr(module, name, None)
    return reader.text(value) or reader.kind(value)


def _module_of(change: ProcessChange, variables: dict[str, Any]) -> ModuleType | None:
    """The module that has what is changed; None where it is none's."""
    root, *path = change.place.rpartition(".")[0].split(".")
    module = variables.get(root)
    for part in path:
        module = getattr(module, part, None)
    return module if isinstance(module, ModuleType) else None
