"""The processes of a hosted program on one worker: started under a guard, their output taken line by line, ended with
all that they started."""

import codecs
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ringleader.guard import guarded
from ringleader.runtime.worker.output_capture import LineStream, OutputCapture

LAST_LINES = 20
LAST_CHARACTERS = 4000
READ_BYTES = 1 << 16
DRAIN_S = 5.0
"""The longest wait for what an ended program has left in its pipes: something else may hold them open."""


class HostedProgram:
    """A program that runs. Its guard ends it with this process, however that ends.

    Args:
        command: the program and its arguments; no shell reads them.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        lines: OutputCapture,
    ) -> None:
        self._process = subprocess.Popen(
            guarded(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=dict(environ),
            # Ray ends a worker together with its process group: the guard has to outlive that, to clean up.
            start_new_session=True,
        )
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        streams = {
            self._process.stdout: LineStream(lines, "info", self._last.append),
            self._process.stderr: LineStream(lines, "error", self._last.append),
        }
        self._readers = [
            threading.Thread(target=_read, args=each, name="program-output", daemon=True)
            for each in streams.items()
        ]
        for reader in self._readers:
            reader.start()

    def ended(self, timeout_s: float) -> int | None:
        """The program's exit status, or 128 and the signal that ended it; None where it still runs after so long."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status

    def stop(self, grace_s: float) -> None:
        """Ask the program to end with SIGTERM, and end it with all its children after `grace_s`."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            # To the guard, which sends the program the signal of the number that it reads.
            self._process.stdin.write(bytes([signal.SIGTERM]))
            self._process.stdin.flush()
        self.ended(grace_s)
        self.kill()

    def kill(self) -> None:
        """End the program with all its children, now; returns when they are gone and what they printed is taken."""
        assert self._process.stdin is not None
        with suppress(OSError):
            # For the guard the end of its input is the end of its owner: it ends all that the program started.
            self._process.stdin.close()
        self._process.wait()
        for reader in self._readers:
            reader.join(DRAIN_S)

    def last_words(self) -> str:
        """The last lines that it printed."""
        return "\n".join(self._last)[-LAST_CHARACTERS:]


def _read(pipe: IO[bytes], stream: LineStream) -> None:
    """Take what comes through a pipe until nobody holds it open."""
    # Incremental: a character may lie across two reads.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while read := os.read(pipe.fileno(), READ_BYTES):
        stream.write(decoder.decode(read))
    stream.finish()
    pipe.close()


def told_status(status: int) -> str:
    """An exit status in words."""
    number = status - 128
    # A program may choose an exit code above 128 by itself, where there is no such signal.
    if number in set(signal.Signals):
        more = ", as where memory runs out" if number == signal.SIGKILL else ""
        return f"was ended by {signal.Signals(number).name}{more}"
    return f"ended with exit code {status}"
