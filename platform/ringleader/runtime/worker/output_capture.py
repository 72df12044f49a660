"""The output of the training function: each line held until its step is settled, dropped when that is replayed; told
before the program ends its own process."""

import io
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

import ringleader
from ringleader.runtime.messages import PrintedLine
from ringleader.text import last_shown, utf8
from ringleader.wire.disclosure import masked, masks_of

MAX_LINES = 10_000
MAX_CHARACTERS = 8 << 20
MAX_LENGTH = 16_000
OURS = "ringleader: "
"""The beginning of lines that the platform, not the program, has printed."""
Level = Literal["info", "error"]
PATIENCE_S = 2.0
"""The time after which a program that ends its own process is gone, whether or not its output was heard."""
OWN = str(Path(ringleader.__file__).parent)


@dataclass(frozen=True, slots=True)
class _Held:
    step: int
    line: PrintedLine


class _Queue:
    """Lines in their order, bounded; the oldest go first."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._characters = 0

    def push(self, held: _Held) -> int:
        """Add a line. Returns the number of older ones that had to go for it."""
        self._held.append(held)
        self._characters += len(held.line.text)
        dropped = 0
        while len(self._held) > MAX_LINES or self._characters > MAX_CHARACTERS:
            self.pop_first()
            dropped += 1
        return dropped

    @property
    def first_step(self) -> int | None:
        return self._held[0].step if self._held else None

    def pop_first(self) -> _Held:
        held = self._held.popleft()
        self._characters -= len(held.line.text)
        return held

    def pop_from(self, step: int) -> None:
        """Forget the lines of this step and later ones; not those that no step prints again."""
        while self._held and self._held[-1].step >= step and self._held[-1].line.before is None:
            self._characters -= len(self._held.pop().line.text)

    def take(self) -> tuple[PrintedLine, ...]:
        taken = tuple(held.line for held in self._held)
        self._held.clear()
        self._characters = 0
        return taken


class OutputCapture:
    """Printed lines of one worker. Thread-safe; holds at most `MAX_LINES` and `MAX_CHARACTERS` of steps that are not
    settled, and as many that are; the oldest go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = _Queue()
        self._free = _Queue()
        self._step = 0
        self._dropped = 0
        self._masks: list[str] = []
        self._thread: int | None = None
        self._before: int | None = None
        self._place = -1
        self._numbers: Counter[str] = Counter()
        self._muted = False
        self._moved = False
        self._again = _Queue()

    def between(self, call: int) -> None:
        """Have what this thread prints from now on stand before that call in the program, inside none."""
        with self._lock:
            self._thread, self._before, self._muted = threading.get_ident(), call, False
            if call != self._place:
                self._place, self._numbers = call, Counter()

    def within(self, *, told: bool = True) -> None:
        """Have what this thread prints from now on be a call's own. It is dropped unless `told`."""
        with self._lock:
            self._before, self._muted = None, not told

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these from now on."""
        # Before lines are cut: half of a secret would pass for none.
        self._masks = masks_of(secrets)

    def cut(self, text: str) -> tuple[str, str]:
        """The beginning of a line that is too long, masked, and the rest, in which a secret may just have begun."""
        text = masked(text, self._masks)
        # The longest is first: at most so many characters may be the beginning of one.
        kept = len(self._masks[0]) - 1 if self._masks else 0
        return text[: len(text) - kept], text[len(text) - kept :]

    def add(self, level: Level, text: str) -> str:
        """Take a line. Returns its text as it is shown."""
        # Cut twice: `utf8` spells a lone surrogate out, which makes the line longer.
        text = utf8(masked(text, self._masks)[:MAX_LENGTH])[:MAX_LENGTH]
        with self._lock:
            line = self._placed(PrintedLine(time.time(), level, text))
            if line is not None:
                self._queue(line)
        return text

    def _queue(self, line: PrintedLine) -> None:
        if line.before and not self._moved:  # calls that were finished without this worker
            self._dropped += self._again.push(_Held(0, line))
            return
        # Before the first step nothing can be rolled back.
        queue = self._held if self._step else self._free
        self._dropped += queue.push(_Held(self._step, line))

    def _placed(self, line: PrintedLine) -> PrintedLine | None:
        """The line with its place in the program; None where it is to be dropped."""
        # Only what the program's own thread prints is the same on all members, the platform's lines are not.
        if threading.get_ident() != self._thread or line.text.startswith(OURS):
            return line
        if self._muted:
            return None
        if self._before is None:
            return line
        self._numbers[line.level] += 1
        return replace(line, before=self._before, number=self._numbers[line.level])

    def at_step(self, step: int) -> None:
        """Assign lines to `step` from now on (counted from 1, while it runs and after it has committed)."""
        with self._lock:
            self._step, self._moved = step, True
            # What this worker printed before it took part waits for those that did: they report the same lines.
            for line in self._again.take():
                self._dropped += self._held.push(_Held(step + 1, line))

    def settled(self, step: int) -> None:
        """Release the lines of steps below `step`, which cannot be rolled back."""
        with self._lock:
            while (first := self._held.first_step) is not None and first < step:
                self._dropped += self._free.push(self._held.pop_first())

    def replayed(self) -> None:
        """Drop the lines of the running step, which starts over and prints them again."""
        with self._lock:
            self._held.pop_from(self._step)

    def release(self) -> None:
        """Release all that is left: the run is over."""
        with self._lock:
            for line in self._again.take():
                self._dropped += self._free.push(_Held(0, line))
            while self._held.first_step is not None:
                self._dropped += self._free.push(self._held.pop_first())

    def take(self) -> tuple[tuple[PrintedLine, ...], int]:
        """The released lines, and the number of lines dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            return self._free.take(), dropped


class LineStream(io.TextIOBase):
    """A text stream whose lines go to `OutputCapture`, and, as they are shown, to `shown`."""

    encoding = "utf-8"

    def __init__(
        self, lines: OutputCapture, level: Level, shown: Callable[[str], None] = lambda line: None
    ) -> None:
        self._lines = lines
        self._level = level
        self._shown = shown
        self._partial = ""
        # Taken again by a signal handler or finalizer that prints in the middle of a write.
        self._writing = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._writing:
            *whole, self._partial = (self._partial + text).split("\n")
            if len(self._partial) > MAX_LENGTH:
                begun, self._partial = self._lines.cut(self._partial)
                whole = [*whole, begun] if begun else whole
            for line in whole:
                self._shown(self._lines.add(self._level, last_shown(line)))
        return len(text)

    def finish(self) -> None:
        with self._writing:
            line, self._partial = last_shown(self._partial), ""
            # Blank where a progress bar was wiped out.
            if line.strip():
                self._shown(self._lines.add(self._level, line))


@contextmanager
def captured(lines: OutputCapture) -> Iterator[Callable[[], None]]:
    """Send this process's stdout and stderr to `lines`. What this thread prints stands before the first call.

    Yields a function that ends the lines that are begun."""
    lines.between(0)
    out, error = LineStream(lines, "info"), LineStream(lines, "error")

    def finish() -> None:
        out.finish()
        error.finish()

    try:
        with redirect_stdout(out), redirect_stderr(error):
            yield finish
    finally:
        finish()


@contextmanager
def told_before_exit(tell: Callable[[], None], patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Have the program's `os._exit` call `tell` first in this block."""
    end, process = os._exit, os.getpid()

    def told(status: int) -> NoReturn:
        caller = sys._getframe(1).f_code.co_filename
        # Not the platform's own, nor one in a child that was forked here: what they end has nothing to tell.
        if os.getpid() == process and not caller.startswith(OWN):
            # On a thread: the one that ends may hold what telling takes, in a signal handler for example.
            last = threading.Thread(target=tell, name="exit-report", daemon=True)
            last.start()
            last.join(patience_s)
        end(status)

    os._exit = told
    try:
        yield
    finally:
        os._exit = end
