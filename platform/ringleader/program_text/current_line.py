"""Lines of the program: the one that runs now, and the one that matches a pattern."""

import ast
import linecache
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType

import torch

import ringleader
from ringleader.program_text.loop_bodies import text_of

PACKAGES = (str(Path(ringleader.__file__).parent), str(Path(torch.__file__).parent))
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
BELOW = (*PACKAGES, *INSTALLED, "<frozen ")
"""Prefixes of files that hold no line of a program."""
_RUN = str(Path(ringleader.__file__).parent / "train" / "run.py")


CodeLine = tuple[CodeType, int]
"""A place in the program: the code of its function and the line."""


def calling_place(above: int) -> CodeLine:
    """The place that called the function that is so many frames above the caller of this one."""
    frame = sys._getframe(above + 2)
    return frame.f_code, frame.f_lineno


def running_frames() -> Iterator[FrameType]:
    """The program's frames that are under way, from the session call to the training function."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        if frame.f_code.co_filename == _RUN:  # above the training function, or behind its end
            break
        if not _is_ours(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    # The program may be installed itself: its package counts wherever it lies, other installed ones do not.
    own = str(found[-1].f_globals.get("__name__", "")).partition(".")[0] if found else ""
    for each in found:
        package = str(each.f_globals.get("__name__", "")).partition(".")[0]
        if package == own or not _is_installed(each.f_code.co_filename):
            yield each


def running_lines() -> dict[str, int]:
    """The line that runs in each file of the program, the innermost one."""
    found: dict[str, int] = {}
    for frame in running_frames():
        found.setdefault(frame.f_code.co_filename, frame.f_lineno)
    return found


@lru_cache(maxsize=4096)
def _is_ours(name: str) -> bool:
    """Whether a file is one of the platform or of torch. Each of a turn's checks asks for every frame of the stack, of
    which a library's loop has many."""
    return name.startswith((*PACKAGES, "<frozen "))  # `python -m` runs by such a one


@lru_cache(maxsize=4096)
def _is_installed(name: str) -> bool:
    return name.startswith(INSTALLED)


def calling_line() -> str:
    """The program's line that runs now, as "file:line: text"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(BELOW):
        frame = frame.f_back
    name, number = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(name).name}:{number}: {linecache.getline(name, number).strip()}"


def running_place() -> str:
    """ "file:line" of the program's line that runs now."""
    return _place(list(running_frames()))


def line_calling(file: str) -> str:
    """ "file:line" of the program's line that has called the functions of `file` that run now; empty where the platform
    or an import has."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == file:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith(BELOW):
        if frame.f_code.co_filename.startswith((PACKAGES[0], "<frozen importlib")):
            return ""
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def line_raising(error: BaseException) -> str:
    """ "file:line" of the program's innermost line that an exception came through; empty where there is none."""
    frames = walk_tb(error.__traceback__)
    lines = [(f.f_code.co_filename, n) for f, n in frames if not f.f_code.co_filename.startswith(BELOW)]
    return f"{Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else ""


def line_setting(key: str) -> str:
    """ "file:line" where the program that runs sets that key, as its text has it; else the line that runs."""
    running = list(running_frames())
    for frame in running:
        text = text_of(frame.f_code.co_filename)
        line = text.line_of_item(key, frame.f_lineno) if text is not None else 0
        if line:
            return f"{Path(frame.f_code.co_filename).name}:{line}"
    return _place(running)


def line_matching(pattern: str) -> str:
    """ "file:line: text" of the only line that looks like this in the functions that run, and in those that they call;
    else the line that runs, which comes behind it."""
    running = list(running_frames())
    found = [match for frame in running for match in _matching(frame, pattern)] if pattern else []
    return found[0] if len(set(found)) == 1 else f"above {_place(running)}"


def line_of_turn_matching(pattern: str) -> str:
    """`line_matching`, but of lines that a turn of the running loop may run: none of an `__init__`, nor of the function
    around the loop."""
    running = list(running_frames())
    found = [
        match for frame in running for match in _matching(frame, pattern, frozenset(_lines_of_no_turn(frame)))
    ]
    return found[0] if len(set(found)) == 1 else f"above {_place(running)}"


def _lines_of_no_turn(frame: FrameType) -> Iterator[int]:
    text = text_of(frame.f_code.co_filename)
    loop = None if text is None else text.loop_at(frame.f_lineno)
    for function in ast.walk(text.tree) if text is not None else ():
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        if function.name == "__init__":
            yield from lines
        elif loop is not None and loop.lineno in lines:
            inside = {n.lineno for n in ast.walk(loop) if isinstance(n, ast.expr | ast.stmt)}
            nested = [n for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function]
            inside |= {n for each in nested for n in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
            yield from set(lines) - inside


def _matching(frame: FrameType, pattern: str, but: frozenset[int] = frozenset()) -> Iterator[str]:
    name = frame.f_code.co_filename
    text = text_of(name)
    if text is None:
        return
    scopes = text.reached_from({text.scope_at(frame.f_lineno).name})
    for number, line in enumerate(linecache.getlines(name), start=1):
        if number not in but and text.scope_at(number).name in scopes and re.search(pattern, line):
            yield f"{Path(name).name}:{number}: {line.strip()}"


def _place(running: list[FrameType]) -> str:
    """ "file:line" of the innermost of these frames."""
    if not running:
        return "its source is not available"
    return f"{Path(running[0].f_code.co_filename).name}:{running[0].f_lineno}"
