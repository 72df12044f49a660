"""Several threads of one process may parse programs at the same time."""

import ast
import gc
import threading
from typing import Any

import pytest

from ringleader.parsing import parse

THREADS = 4
SOURCE = "\n".join(f"def f{n}(a):\n    return [a + {n} * (x - 1) for x in range(a)]" for n in range(60))


class _Switches:
    """A cycle whose end runs Python code in the midst of whatever allocates: there another thread may go on."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        threading.Event().wait(0.0001)


def test_threads_that_parse_at_once_all_get_their_tree() -> None:
    trouble: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                for _ in range(20):
                    _Switches()
                assert len(parse(SOURCE).body) == 60
        except BaseException as error:
            trouble.append(error)

    before = gc.get_threshold()
    gc.set_threshold(200, 2, 2)
    try:
        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        gc.set_threshold(*before)
    assert trouble == []


def test_a_thread_that_parses_without_the_lock_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython raises in either thread."""
    parsed, left = (
        ast.parse,
        [SystemError("AST constructor recursion depth mismatch (before=18, after=31)")] * 2,
    )

    def parse_beside(source: Any) -> ast.Module:
        if left:
            raise left.pop()
        return parsed(source)

    monkeypatch.setattr(ast, "parse", parse_beside)
    assert len(parse(SOURCE).body) == 60
    assert left == []
