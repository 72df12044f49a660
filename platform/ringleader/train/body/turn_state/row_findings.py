"""Findings about rows that depend on who reads them.

A data set, or its `collate`, goes on with an iterator when rows are read: which one went on is seen where rows are
loaded, see `rows/read_iterators.py`. The text says whether its values reach a row: a count of reads that is only shown
does no harm. Or loading processes read other rows than the training thread, see `rows/row_comparison.py`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from ringleader.program_text.current_line import BELOW, running_frames
from ringleader.program_text.dataset_caches import file_of
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import Key
from ringleader.train.between_calls.call_variables import place_of
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.body.turn_state.turn_attributes import in_reach
from ringleader.train.program_check.kept_draws import place_of_reads

HOW = "goes on when rows are read"
CURE = (
    "what a row gets of it depends on which rows the same worker has read before: take the value by the row's number, "
    "as in values[row % len(values)], or draw it from a generator of random numbers that the data set holds, which is "
    "seeded for each slice"
)
STALE_HOW = "gives other rows here than in its loading processes, which hold it as it was when they started"
STALE_CURE = (
    "leave loader_workers at 0 where rows go by training: by the session, by weights or a rate, by what a callback or "
    "lines after a step change"
)


def stale_rows_of(dataset: Any, collate: Any) -> VariableFinding:
    """The finding about rows that loading processes read otherwise than the training thread."""
    where, code = place_of_reads(dataset), getattr(collate, "__code__", None)
    owner, kind = dataset, "data set"
    if not where and any(_texts_of(collate)) and code is not None:
        where, owner, kind = f"{Path(code.co_filename).name}:{code.co_firstlineno}", collate, "collate"
    return VariableFinding(_variable_of(owner) or kind, where or _running_places()[0], STALE_CURE, STALE_HOW)


def finding_of(dataset: Any, collate: Any, path: str) -> VariableFinding | None:
    """The finding about an iterator; None where it is only shown.

    Args:
        path: from `own_iterators`: below "0" in the data set, below "1" in `collate`.
    """
    root, *parts = path.strip(".").split(".")
    key = _key_of(parts)
    texts = list(_texts_of(dataset, collate))
    setting = [text for text in texts if text.flows.sets.get(key)]
    if setting and key[1].startswith(".") and not any(t.flows.matter_in_turns_at(key) for t in texts):
        return None
    lines = [f"{text.name}:{max(text.flows.sets[key])}" for text in setting]
    owner, kind = (collate, "collate") if root == "1" else (dataset, "data set")
    line = (*lines, *filter(None, [place_of_reads(dataset)]), *_running_places())[0]
    # What is around a function has a name of its own.
    whose = "" if isinstance(owner, FunctionType) else _variable_of(owner) or kind
    return VariableFinding(_name(whose, parts), line, CURE, HOW)


def _running_places() -> list[str]:
    """The lines at which the program is, the innermost first."""
    return [place_of(frame, frame.f_lineno) for frame in running_frames()] or ["the end of the program"]


def _key_of(parts: list[str]) -> Key:
    """The key of the attribute, or of the global, that has the iterator, or the container around it."""
    named = [part for part in parts if not part.isdigit()]
    name = named[-1] if named else ""
    return "", name.removeprefix("::") if name.startswith("::") else f".{name}"


def _name(owner: str, parts: list[str]) -> str:
    """As a program writes it: `data.noise[0]`; a global by its own name."""
    name = owner
    for part in parts:
        name = part.removeprefix("::") if part.startswith("::") else f"{name}.{part}"
    return re.sub(r"\.(\d+)", r"[\1]", name).lstrip(".")


def _variable_of(value: Any) -> str:
    variables = [item for frame in running_frames() for item in in_reach(frame).items()]
    return next((name for name, held in variables if held is value), "")


def _data_sets(owner: Any) -> Iterator[Any]:
    """The owner, and the data sets that torch's own ones hold."""
    yield owner
    match owner:
        case Subset():
            yield from _data_sets(owner.dataset)
        case ConcatDataset():
            yield from (inside for each in owner.datasets for inside in _data_sets(each))


def _texts_of(*owners: Any) -> Iterator[SourceText]:
    """The texts of the program in which the owners' classes, or they themselves, are defined."""
    for owner in (inside for each in owners for inside in _data_sets(each)):
        code = getattr(owner, "__code__", None)
        files = [file_of(each) for each in type(owner).__mro__] if code is None else [code.co_filename]
        for file in files:
            text = text_of(file) if file and not file.startswith(BELOW) else None
            if text is not None:
                yield text
