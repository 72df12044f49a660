"""Variables of loops, by the program's text: those that bodies leave to lines behind them, or to later turns, and those
that say how often a loop of session calls goes round."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import unwrap
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ringleader.program_text.current_line import running_frames
from ringleader.program_text.loop_bodies import EscapingName, SourceText, text_of
from ringleader.program_text.program_scope import Key
from ringleader.program_text.variables.apart import plain
from ringleader.train.between_calls.findings import (
    BODY_CURE,
    CARRIED_ADVICE,
    CARRIED_CURE,
    STEPS_CURE,
    STEPS_HOW,
    VariableFinding,
)
from ringleader.train.job_warnings import JobWarnings


def warn_of_bodies(warnings: JobWarnings, models: Sequence[torch.nn.Module]) -> None:
    """Warn, as the first loop begins, of variables that by the program's text will differ by worker."""
    frames = list(running_frames())
    buffers = _names_of_buffers(models)
    for escape, file in escapes(frames):
        name, place = plain(escape.key[1]).lstrip("."), Path(file).name
        if escape.key[1].startswith(".") and name in buffers:
            continue
        warnings.add(
            "variable",
            f"the body of a loop changes {name} ({place}:{escape.line}), and it is read "
            f"after the loop ({place}:{escape.read}): each worker's body sees other rows, so its value differs "
            f"between workers.",
            f"Instead, {BODY_CURE}.",
        )
    for carry, file in carries(frames):
        name, place = plain(carry.key[1]).lstrip("."), Path(file).name
        if name in buffers:
            continue
        warnings.add(
            "variable",
            f"the body of a loop changes {name} ({place}:{carry.line}), and a later turn "
            f"reads it ({place}:{carry.read}): a worker runs the body for its own slices only, so the weights "
            f"would depend on which worker computes what.",
            CARRIED_ADVICE,
        )
    for left, file in _told(frames, lambda text: text.by_steps):
        name, place = plain(left.key[1]).lstrip("."), Path(file).name
        reason, _, advice = STEPS_CURE.partition(". ")
        warnings.add(
            "variable",
            f"lines after a step of session.steps change {name} ({place}:{left.line}), and those after a later step "
            f"read it ({place}:{left.read}): {reason}.",
            f"{advice}.",
        )


def escaped(function: Any) -> list[dict[str, str]]:
    """The findings of `escapes` and `carries`, as dicts, for a training function that has not begun."""
    function = unwrap(function)  # of an adapter: the program's own is inside
    code = function.__code__
    text = text_of(code.co_filename)
    if text is None:
        return []
    file = Path(code.co_filename).name
    scopes = text.reached_from({text.scope_at(code.co_firstlineno).name, function.__name__})
    behind = [
        (escape, f"it is changed in a loop's body and read after the loop in line {escape.read}: {BODY_CURE}")
        for escape in text.escapes.values()
    ]
    within = [(carry, CARRIED_CURE) for carry in text.carried.values()]
    return [
        {"variable": plain(each.key[1]).lstrip("."), "line": f"{file}:{each.line}", "cure": cure}
        for each, cure in (*behind, *within)
        if each.scope in scopes
    ]


def missed_lines() -> list[VariableFinding]:
    """The findings for a worker that comes into a loop over `session.steps` behind its first step: what the lines after
    earlier ones have left to those after later ones."""
    return [
        VariableFinding(
            plain(left.key[1]).lstrip("."), f"{Path(file).name}:{left.line}", STEPS_CURE, STEPS_HOW
        )
        for left, file in _told(list(running_frames()), lambda text: text.by_steps)
    ]


def _names_of_buffers(models: Sequence[torch.nn.Module]) -> set[str]:
    return {name.rpartition(".")[2] for model in models for name, _ in model.named_buffers()}


def escapes(frames: list[FrameType]) -> Iterator[tuple[EscapingName, str]]:
    """The names that bodies leave to the lines behind them, each with its file, in the running functions and those that
    they call."""
    return _told(frames, lambda text: text.escapes)


def carries(frames: list[FrameType]) -> Iterator[tuple[EscapingName, str]]:
    """The names that turns of bodies leave to later turns, likewise."""
    return _told(frames, lambda text: text.carried)


def _told(
    frames: list[FrameType], which: Callable[[SourceText], Mapping[Key, EscapingName]]
) -> Iterator[tuple[EscapingName, str]]:
    for file in dict.fromkeys(frame.f_code.co_filename for frame in frames):
        text = text_of(file)
        if text is None:
            continue
        lines = [frame.f_lineno for frame in frames if frame.f_code.co_filename == file]
        scopes = text.reached_from({text.scope_at(line).name for line in lines})
        yield from ((escape, file) for escape in which(text).values() if escape.scope in scopes)


def names_of_bounds(frames: Iterable[FrameType]) -> set[str]:
    """The names that say how often loops of session calls go round, such as `start` of `for epoch in range(start, 12)`:
    of the functions that run, and of loops that are not over."""
    return {name for frame in frames for loop in _loops(frame) for name in _header(loop)}


def _loops(frame: FrameType) -> Iterator[ast.For | ast.While]:
    text = text_of(frame.f_code.co_filename)
    sessions = {name for name, value in frame.f_locals.items() if _is_session(value)}
    for node in ast.walk(text.tree) if text is not None else ():
        if not isinstance(node, ast.For | ast.While) or (node.end_lineno or 0) < frame.f_lineno:
            continue
        # A loop of another function has other variables under such names.
        same = text is not None and text.scope_at(node.lineno).name == text.scope_at(frame.f_lineno).name
        if same and any(isinstance(each, ast.Name) and each.id in sessions for each in ast.walk(node)):
            yield node


def _header(loop: ast.For | ast.While) -> set[str]:
    header = loop.iter if isinstance(loop, ast.For) else loop.test
    return {each.id for each in ast.walk(header) if isinstance(each, ast.Name)}


def _is_session(value: object) -> bool:
    return type(value).__module__.startswith("ringleader.") and hasattr(type(value), "batches")
