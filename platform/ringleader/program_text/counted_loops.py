"""Loops that end after a number of turns: refused, because a worker's turns are those of its own slices."""

import ast
import inspect
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ringleader.errors import StepMisuse
from ringleader.program_text.current_line import CodeLine, running_frames
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.statement_order import ends_loop, own_statements, span
from ringleader.program_text.step_items import numbered

LOOPS = frozenset(["batches", "steps"])
COUNTING = frozenset(["islice", "zip", "zip_longest", "pairwise", "batched"])


def check_not_counted(place: CodeLine, call: str, *, same_bits: bool) -> None:
    """Refuse the first turn of a call of `session.batches` at `place` if its turns are counted: there, in the loop that
    takes them, or where a generator of the program hands them on.

    Args:
        call: of which function it is, as the program writes it: `session.batches` or `session.steps`.
        same_bits: the job promises them: the number of a turn decides nothing then.

    Raises:
        StepMisuse: its batches go through a function that counts turns, or pairs them with something else; or the
            number that `enumerate` gives to a turn decides on its end.
    """
    for (code, line), giver in _takers(place):
        what = _counting(code.co_filename, line, giver) or (same_bits and _numbering(code.co_filename, line))
        if what:
            raise StepMisuse(
                f"{what} {call} ({Path(code.co_filename).name}:{line}): it counts slices, and how many batches those "
                "are depends on the number of workers.",
                hint="Stop by step: if session.global_step >= last: break, before session.step; or session.stop(). "
                "Values that belong to a row come from the data set.",
            )


def _takers(place: CodeLine) -> Iterator[tuple[CodeLine, str]]:
    """The place of the call, and who takes the first batch; as long as that is a generator that yields the batches, who
    takes them from it, with the generator's name."""
    yield place, ""
    giver = ""
    for frame in running_frames():
        code, line = frame.f_code, frame.f_lineno
        yield (code, line), giver
        if not (code.co_flags & inspect.CO_GENERATOR and _hands_on(code.co_filename, line)):
            return
        giver = code.co_name


@lru_cache(maxsize=256)
def _hands_on(file: str, line: int) -> bool:
    """Whether a generator that asks for batches at that line yields each of them: it may also train on them itself."""
    for node in _beside(file, line):
        if isinstance(node, ast.YieldFrom) and node.lineno <= line <= (node.end_lineno or line):
            return True
        if isinstance(node, ast.For) and _heads(node, line):
            inside = [each for statement in node.body for each in ast.walk(statement)]
            return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in inside)
        if isinstance(node, ast.GeneratorExp) and node.lineno <= line <= (node.end_lineno or line):
            return True
    return False


@lru_cache(maxsize=256)
def _counting(file: str, line: int, giver: str) -> str:
    """The complaint, up to what is counted, about a call of `session.batches(…)` on that line, or of the generator of
    that name, that is passed to a counting function."""
    nodes = list(_beside(file, line))
    headers = [loop.iter for loop in nodes if isinstance(loop, ast.For) and _heads(loop, line)]
    calls = (node for node in nodes if isinstance(node, ast.Call) and _name(node.func) in COUNTING)
    found = [
        _name(call.func)
        for call in calls
        if call in headers or line in _lines_of_batches(call) or (giver and giver in _called_in(call))
    ]
    return f"{found[-1]}(…) iterates over" if found else ""


@lru_cache(maxsize=256)
def _numbering(file: str, line: int) -> str:
    """The complaint, up to the same place, about one that is passed to `enumerate`, whose number ends the loop."""
    loops = (node for node in _beside(file, line) if isinstance(node, ast.For))
    leaving = ((loop, left) for loop in loops if (left := _left_by_number(loop)))
    found = [left for loop, left in leaving if _heads(loop, line) or line in _lines_of_batches(loop.iter)]
    what = "ends a loop by the number that enumerate(…) gives to turns of"
    return f"line {found[-1]} {what}" if found else ""


def _beside(file: str, line: int) -> Iterator[ast.AST]:
    """The nodes of the file's statement, function or class around that line: another one has no part of the call."""
    text = text_of(file)
    # Without a text, as behind `exec`, nothing is refused.
    for top in text.tree.body if text else ():
        start, end = span(top)
        if start <= line <= end:
            yield from ast.walk(top)


def _heads(loop: ast.For, line: int) -> bool:
    """Whether the loop begins at that line: an adapter's, whose text has no call of `session.batches`."""
    return loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno)


def _lines_of_batches(call: ast.AST) -> list[int]:
    """The lines of calls of `batches` or `steps` in the arguments of a call."""
    inner = (each for argument in getattr(call, "args", ()) for each in ast.walk(argument))
    calls = [each for each in inner if isinstance(each, ast.Call) and _name(each.func) in LOOPS]
    # All lines of the call: its frame may stand at any of them.
    return [number for each in calls for number in range(each.lineno, _end(each) + 1)]


def _called_in(call: ast.Call) -> Iterator[str]:
    """The names that the arguments of a call call."""
    inner = (each for argument in call.args for each in ast.walk(argument))
    return (_name(each.func) for each in inner if isinstance(each, ast.Call))


def _left_by_number(loop: ast.For) -> int:
    """The line of a test of the number that `enumerate` gives to each turn, and ends the loop below it; 0 without."""
    number = numbered(loop)
    if not number:
        return 0
    tests = (
        node for node in own_statements(loop.body) if isinstance(node, ast.If) and number in _names(node.test)
    )
    return next((test.lineno for test in tests if ends_loop(test.body)), 0)


def _names(test: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}


def _name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _end(node: ast.Call) -> int:
    return node.end_lineno or node.lineno
