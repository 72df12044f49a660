"""Whether lines behind a loop over batches need a turn of that very loop, where turns of it ran for earlier calls only.

A turn runs the body of the loop, the generators of the program through which the batches come, and the functions that
these call, in whichever of the program's files.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import CO_GENERATOR, unwrap
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from ringleader.program_text.current_line import BELOW, CodeLine, running_frames
from ringleader.program_text.loop_bodies import SourceText, text_of
from ringleader.program_text.program_scope import Definition, Function, name_of
from ringleader.program_text.turn_order import TurnOrder
from ringleader.program_text.variables.collected import (
    NEXT,
    TurnLines,
    hooks_in,
    keeps_results,
    lines_taking,
)
from ringleader.train.body.turn_state.turn_attributes import in_reach

_OF_LIBRARIES = ("training_step", "compute_loss", "on_train_batch_start", "on_train_batch_end")
"""The methods of the program that the loops of libraries call in each turn."""
_AROUND = ("__enter__", "__exit__")


class CollectingTurns:
    """The loops of one member's program; what the text says of one is found once."""

    def __init__(self) -> None:
        self._found: dict[tuple[CodeLine, ...], bool] = {}

    def leave_needed(self, place: CodeLine) -> bool:
        """Whether lines behind the loop that is about to begin need what a turn of it collects, or a name that a turn
        gives and that the function does not have now.

        Args:
            place: the call of `session.batches`, for a loop of the platform's own.
        """
        frames = list(_taking(running_frames()))
        if any(map(_lacks_names, frames)):
            return True
        lines = tuple((frame.f_code, frame.f_lineno) for frame in frames) or (place,)
        if lines not in self._found:
            self._found[lines] = _collect(lines, list(running_frames()))
        return self._found[lines]


def _taking(frames: Iterable[FrameType]) -> Iterator[FrameType]:
    """The frames through which the batches come: generators and iterators of the program, then the loop's own."""
    for frame in frames:
        yield frame
        if not frame.f_code.co_flags & CO_GENERATOR and frame.f_code.co_name != NEXT:
            return


def _lacks_names(frame: FrameType) -> bool:
    """Whether the function has no value, or None, for a name that a turn gives and other lines use: it was called anew,
    or they have deleted it."""
    lines = _lines_at(frame.f_code, frame.f_lineno)
    if lines is None or not lines.left:
        return False
    has = in_reach(frame)
    return any(has.get(name) is None for name in lines.left)


def _lines_at(code: CodeType, line: int) -> TurnLines | None:
    text = text_of(code.co_filename)
    return None if text is None else lines_taking(text.tree, line, text.flows.imported)


def _collect(lines: Sequence[CodeLine], frames: Sequence[FrameType]) -> bool:
    """Whether turns of the loop that takes its batches in these lines collect values."""
    taking = [_lines_at(*line) for line in lines]
    if any(each is not None and each.collects for each in taking):
        return True
    code, line = lines[-1]
    # Of a loop without a text nothing is known: a turn too many costs less than one too few.
    text = text_of(code.co_filename)
    if text is None or (taking[-1] is None and keeps_results(text.tree, line)):
        return True
    reached = Reached(frames)
    body = [node for each in taking if each is not None for node in (*each.begin, *each.body)]
    named = {node.id for each in body for node in ast.walk(each) if isinstance(node, ast.Name)}
    held = [value for frame in frames for name, value in in_reach(frame).items() if name in named]
    roots = [*body, *filter(None, map(_definition_of, held)), *reached.hooks]
    roots += reached.named(_OF_LIBRARIES if taking[-1] is None else ())
    if any(isinstance(node, ast.With) for each in body for node in ast.walk(each)):
        roots += reached.named(_AROUND)
    called = TurnOrder(roots, reached.functions).called
    return any(reached.lines_of(each).collects for each in (*called, *roots[len(body) :]))


class Reached:
    """The definitions of the program that its running functions reach by name, or hold objects of.

    Attributes:
        functions: the functions and methods among them, by name.
        hooks: what they register as hooks of a forward.
    """

    def __init__(self, frames: Iterable[FrameType]) -> None:
        self._texts: dict[int, SourceText] = {}
        self.functions: dict[str, list[Function]] = {}
        found: dict[int, ast.AST] = {}
        new = [each for frame in frames for each in _of_frame(frame)]
        while new:
            text, variables, top = new.pop()
            if id(top) in found:
                continue
            found[id(top)] = top
            for node in ast.walk(top):
                self._texts[id(node)] = text
                if isinstance(node, Function):
                    self.functions.setdefault(node.name, []).append(node)
            new += [each for value in _values_in(top, variables) for each in _definitions(value)]
        hooks = list(hooks_in(found.values()))
        self.hooks: list[ast.AST] = [*hooks, *self.named(map(name_of, hooks))]

    def named(self, names: Iterable[str]) -> list[Function]:
        return [each for name in names for each in self.functions.get(name, ())]

    def lines_of(self, node: ast.AST) -> TurnLines:
        """The lines of a function, or of an expression, that a turn runs as a whole."""
        text = self._texts.get(id(node))
        body = node.body if isinstance(node, Function) else [node]
        return TurnLines(node, (), body, text.flows.imported if text is not None else ())


_Definition = tuple[SourceText, Mapping[str, Any], ast.AST]
"""A statement of a file's own, with the text of the file and its variables."""


def _of_frame(frame: FrameType) -> Iterator[_Definition]:
    text = text_of(frame.f_code.co_filename)
    if text is not None:
        line = frame.f_lineno
        top = (each for each in text.tree.body if each.lineno <= line <= (each.end_lineno or 0))
        # A file that runs as a whole is no definition: its loop stands for itself.
        yield from ((text, frame.f_globals, each) for each in top)
    # Methods of objects, and functions of other files, are reached by what the variables hold.
    for value in in_reach(frame).values():
        yield from _definitions(value)


def _values_in(top: ast.AST, variables: Mapping[str, Any]) -> Iterator[Any]:
    """The values of a file that a definition names, those in other files of the program included."""
    for node in ast.walk(top):
        if isinstance(node, ast.Name) and node.id in variables:
            yield variables[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = variables.get(node.value.id)
            if isinstance(module, ModuleType) and node.attr in vars(module):
                yield vars(module)[node.attr]


def _definitions(value: Any) -> Iterator[_Definition]:
    """The outermost definition of a function or a class, or of an object's class; of a list's objects too."""
    if isinstance(value, list | tuple):
        for each in value[:16]:
            yield from () if isinstance(each, list | tuple) else _definitions(each)
        return
    value = _plain(value)
    kind: Any = value if isinstance(value, type | FunctionType) else type(value)
    module = sys.modules.get(str(kind.__module__))
    file = str(getattr(module, "__file__", "") or "")
    text = None if not file or file.startswith(BELOW) else text_of(file)
    if text is None:
        return
    outermost = str(kind.__qualname__).partition(".")[0]
    for top in text.tree.body:
        if isinstance(top, Definition) and top.name == outermost:
            yield text, vars(module), top


def _plain(value: Any) -> Any:
    """The function of the program in a method, a partial or what wraps one."""
    while isinstance(value, partial | MethodType):
        value = value.func if isinstance(value, partial) else value.__func__
    return unwrap(value) if isinstance(value, FunctionType) else value


def _definition_of(value: Any) -> ast.AST | None:
    """The text of a function of the program that a variable holds."""
    code = getattr(_plain(value), "__code__", None)
    if not isinstance(code, CodeType) or code.co_filename.startswith(BELOW):
        return None
    text, line = text_of(code.co_filename), code.co_firstlineno
    for node in ast.walk(text.tree) if text is not None else ():
        if isinstance(node, Function) and node.name == code.co_name:
            if line in (node.lineno, *(each.lineno for each in node.decorator_list)):
                return node
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == line:
            return node
    return None
