"""Python source, parsed by one thread at a time."""

import ast
import threading

_PARSING = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """Parse the source of a module. Raises the errors of `ast.parse`.

    CPython 3.11 counts the depth of a tree that it builds in one counter for all threads: two that parse at once get a
    SystemError ("AST constructor recursion depth mismatch").
    """
    with _PARSING:
        return ast.parse(source)
