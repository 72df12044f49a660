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

from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.variables.lines_after_steps import SETTERS, ProcessChange, process_changes
from ringleader.train.between_calls.objects.program_objects import of_program
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
            if told is not None:
                yield change.place, told, f"{Path(file).name}:{change.line}"


def _told(change: ProcessChange, variables: dict[str, Any], reader: ValueReader) -> str | None:
    if change.variable:
        return reader.text(os.environ.get(change.variable))
    owner, _, name = change.place.rpartition(".")
    if owner == "torch" and name in SETTERS:
        return repr(getattr(torch, SETTERS[name])())
    root, *path = owner.split(".")
    module = variables.get(root)
    for part in path:
        module = getattr(module, part, None)
    # Globals of a program's own file are its variables.
    if not isinstance(module, ModuleType) or of_program(module.__name__):
        return None
    value = getattr(module, name, None)
    return reader.text(value) or reader.kind(value)
