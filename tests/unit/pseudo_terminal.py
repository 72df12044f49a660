"""A command on a pseudo-terminal of its own: what it shows, and keys for it."""

import os
import pty
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

DEADLINE_S = 120  # a hang; on a busy machine Python alone takes seconds to start


class PseudoTerminal:
    """Runs a program of Python whose input and output are the terminal."""

    def __init__(self, program: str, **environ: str) -> None:
        self._terminal, theirs = pty.openpty()
        self.shown = b""
        self._read_until = 0
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        self._child = subprocess.Popen(
            [sys.executable, "-c", program],
            env={"PATH": os.environ["PATH"], "TERM": "xterm", "PYTHONPATH": path, **environ},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait(DEADLINE_S)
        os.close(self._terminal)

    def read_to(self, text: bytes) -> None:
        """Read until the text is shown, behind the one that was read to before."""
        while (found := self.shown.find(text, self._read_until)) < 0:
            assert self._read(), f"ended without {text!r}: {self.shown!r}"
        self._read_until = found + len(text)

    def press(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C."""
        self._child.send_signal(signal.SIGINT)

    def read_to_end(self) -> int:
        """Read until the command has ended; its exit code."""
        while self._read():
            pass
        return self._child.wait(DEADLINE_S)

    def _read(self) -> bool:
        # Not select.select, which refuses descriptors from 1024 on.
        with selectors.DefaultSelector() as selector:
            selector.register(self._terminal, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S), f"nothing came behind {self.shown!r}"
        try:
            more = os.read(self._terminal, 4096)
        except OSError:
            return False  # how a terminal that nobody has open any more ends
        self.shown += more
        return bool(more)
