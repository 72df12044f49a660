"""Python source, parsed by one thread at a time."""

import ast
import threading

TRIES = 100
"""The most tries where others parse meanwhile."""
_PARSING = threading.RLock()
"""A finaliser that the garbage collector runs in the midst of parsing may parse, too."""


def parse(source: str | bytes) -> ast.Module:
    """Parse the source of a module. Raises the errors of `ast.parse`.

    CPython 3.11 counts the depth of a tree that it builds in one counter for all threads: two that parse at once get a
    SystemError ("AST constructor recursion depth mismatch").
    """
    with _PARSING:
        for _ in range(TRIES):
            try:
                return ast.parse(source)
            except SystemError:  # so did a finaliser, or a thread that does not ask for the lock
                continue
        return ast.parse(source)
