"""Single keys of a terminal, read without waiting for a line."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

UP, DOWN, QUIT = "\x1b[A", "\x1b[B", "q"
_OF_APPLICATIONS = {"\x1bOA": UP, "\x1bOB": DOWN}  # as some terminals send arrows


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Gives a function that waits up to some seconds for a key; "" where none came."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # Ctrl-C stays a signal, and what is printed stays as it is.
    tty.setcbreak(terminal)
    try:
        yield lambda timeout_s: _key(terminal, timeout_s)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _key(terminal: int, timeout_s: float) -> str:
    if not select.select([terminal], [], [], timeout_s)[0]:
        return ""
    # Nothing to read although there is something: nobody has the terminal open any more.
    pressed = os.read(terminal, 32).decode(errors="replace") or QUIT
    return _OF_APPLICATIONS.get(pressed, pressed)


def _no_key(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""
