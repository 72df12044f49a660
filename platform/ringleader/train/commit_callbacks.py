"""State that `on_commit` callbacks change and no step commits: a worker that joins, a later attempt and lines that run
again do not have it.

Examined are the object that a bound method belongs to, variables around a nested function, and globals that it names,
around the first calls of each callback.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ringleader.program_text.calls import HARMLESS
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.program_scope import name_of
from ringleader.train.between_calls.value_fingerprints import ValueReader
from ringleader.train.state.training_state import TrainingState

LOOKS = 3
CURE = "Register such state with session.keep(name, object), or change it between loops."


class CallbackState:
    """One member's watch over its callbacks.

    Args:
        warn: reports that something is not kept: its subject, a sentence, what to do.
        around: makes a context that surrounds each call.
    """

    def __init__(
        self,
        held: TrainingState,
        warn: Callable[[str, str, str], None],
        *,
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._held = held
        self._warn = warn
        self._around = around
        self._calls: Counter[int] = Counter()

    @contextmanager
    def watched(self, callback: Callable[[], None]) -> Iterator[None]:
        """Compare what `callback` may change before and after one call of it, and warn if it did."""
        which = id(callback)  # the session holds it
        self._calls[which] += 1
        before = self._texts(callback) if self._calls[which] <= LOOKS else None
        with self._around():
            yield
        if before is None:
            return
        now = self._texts(callback)
        changed = [n for n, text in now.items() if text != before.get(n) and not _is_only_shown(callback, n)]
        if changed:
            # One warning for each callback: no more looks at this one.
            self._calls[which] = LOOKS
            name = getattr(callback, "__qualname__", type(callback).__name__)
            message = (
                f"the on_commit callback {name} changes {', '.join(sorted(changed))}, which is not committed."
            )
            self._warn("on_commit", message, CURE)

    def _texts(self, callback: Any) -> dict[str, str]:
        reader = ValueReader(self._held, {})
        kept = {id(each) for each in self._held.kept.values()}
        texts = {name: reader.text(value) for name, value in _reached(callback, kept)}
        return {name: text for name, text in texts.items() if text is not None}


def _reached(callback: Any, kept: set[int]) -> Iterator[tuple[str, Any]]:
    """Named values that a callback may change, without the kept objects, which are given by identity."""
    if isinstance(callback, MethodType):
        yield from _attributes(type(callback.__self__).__name__, callback.__self__, kept)
        callback = callback.__func__
    if not isinstance(callback, FunctionType):
        yield from _attributes(type(callback).__name__, callback, kept)
        return
    code = callback.__code__
    # An empty cell, of a name not assigned yet, raises on cell_contents; it equals a fresh cell.
    around = [
        (name, cell.cell_contents)
        for name, cell in zip(code.co_freevars, callback.__closure__ or (), strict=True)
        if cell != type(cell)()
    ]
    named = [(name, callback.__globals__[name]) for name in code.co_names if name in callback.__globals__]
    for name, value in (*around, *named):
        if id(value) in kept or isinstance(value, ModuleType | FunctionType | type):
            continue
        yield name, value
        yield from _attributes(name, value, kept)


def _is_only_shown(callback: Any, name: str) -> bool:
    """Whether a variable around the callback is printed or logged, and nothing that affects training reads it, by the
    text of its file."""
    if not isinstance(callback, FunctionType) or "." in name:
        return False
    code = callback.__code__
    text = text_of(code.co_filename)
    if text is None or text.flows.may_matter(text.scope_at(code.co_firstlineno).key(name)):
        return False
    shown = (n for n in ast.walk(text.tree) if isinstance(n, ast.Call) and name_of(n.func) in HARMLESS)
    return any(isinstance(part, ast.Name) and part.id == name for call in shown for part in ast.walk(call))


def _attributes(name: str, value: Any, kept: set[int]) -> Iterator[tuple[str, Any]]:
    # Models, optimizers and our own objects change at every step, and are committed in other ways.
    if id(value) not in kept and not type(value).__module__.startswith(("ringleader.", "torch.")):
        for attribute, held in getattr(value, "__dict__", {}).items():
            yield f"{name}.{attribute}", held
