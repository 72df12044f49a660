"""Spare processes of a play's worker: each becomes one that the worker starts with `python -c`.

A new interpreter would load pyarrow, or torch, for some seconds; a spare was forked with all of it loaded. A worker
forks them before anything else, while it has no threads and has run none of its program.
"""

import fcntl
import os
import pickle
import socket
import subprocess
import sys
import traceback
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = str(Path(__file__).parent)
ABOVE = 1000
"""Descriptors that come over a socket lie there until they get the numbers that they have in the worker."""
_spare: list[tuple[int, socket.socket]] = []
_of_the_play: list[str] = []
_looked_through_to = ""


def keep(number: int) -> None:
    """Fork so many, and have `subprocess.Popen` take them while there are any."""
    for _ in range(number):
        here, there = socket.socketpair()
        pid = os.fork()
        if not pid:
            _serve(there)
        there.close()
        _spare.append((pid, here))
    subprocess.Popen = FromSpares  # type: ignore[misc]


class FromSpares(subprocess.Popen):  # type: ignore[type-arg]
    """A child that runs `python -c …`, from the spares; any other one as ever."""

    def _execute_child(self, args: Any, *how: Any) -> None:
        if list(args[:2]) != [sys.executable, "-c"] or not _spare:
            super()._execute_child(args, *how)  # type: ignore[misc]
            return
        _, _, _, passed, cwd, environ, _, _, _, *streams, _, _, _, _, _, leads, _ = how
        given = enumerate((streams[0], streams[3], streams[5]))
        numbers = {number: stream for number, stream in given if stream >= 0}
        numbers |= {number: number for number in passed}
        order = args[2], cwd, dict(environ or os.environ), [*numbers], leads
        self.pid, line = _spare.pop()
        with line, line.makefile("wb") as words:
            socket.send_fds(line, [b"."], [*numbers.values()])
            pickle.dump(order, words)
            words.flush()
            line.recv(1)  # as of a new process, its group is there once this returns
        self._child_created = True
        self._close_pipe_fds(*streams)


def _serve(line: socket.socket) -> None:
    """Wait for what to be; never returns. A worker that ends without it ends the spare."""
    code = 1
    try:
        number = line.fileno()
        os.closerange(3, number)  # lines whose other ends would wait for this process too
        os.closerange(number + 1, os.sysconf("SC_OPEN_MAX"))
        _, got, *_ = socket.recv_fds(line, 1, 16)
        if not got:
            os._exit(0)
        with line, line.makefile("rb") as words:
            text, cwd, environ, numbers, leads = pickle.load(words)
            if leads:
                os.setsid()
            line.sendall(b".")
        _take(got, numbers)
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(cwd or ".")
        code = _run(text)
    finally:
        os._exit(code)


def _take(got: list[int], numbers: list[int]) -> None:
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, ABOVE) for one in got]
    for one in got:
        os.close(one)
    for one, number in zip(high, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)


def _run(text: str) -> int:
    """As an interpreter would that has loaded nothing of the play. Returns its exit status."""
    for name in _modules_of_the_play():
        del sys.modules[name]
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        exec(compile(text, "<string>", "exec"), vars(main))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _modules_of_the_play() -> list[str]:
    """Those that were looked through before the fork are not again: each look copies the page where a module lies."""
    later = takewhile(lambda name: name != _looked_through_to, reversed(sys.modules))
    return [*_of_the_play, *(name for name in later if _is_of_the_play(sys.modules[name]))]


def look_through() -> None:
    """Note which of the modules that are loaded so far are the play's; in the server that processes are forked from."""
    global _of_the_play, _looked_through_to
    _of_the_play = [name for name, module in sys.modules.items() if _is_of_the_play(module)]
    _looked_through_to = next(reversed(sys.modules))


def _is_of_the_play(module: ModuleType) -> bool:
    return str(vars(module).get("__file__")).startswith(HERE)
