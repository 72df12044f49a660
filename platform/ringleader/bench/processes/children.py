"""Processes that a benchmark starts: with a deadline, dead with their parent, nothing left behind."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ringleader.bench.broken import PeerFailed
from ringleader.comm.seal import new_secret
from ringleader.lifeline import end_with_parent

TAIL = 40
RUN_VARIABLE = "RINGLEADER_BENCH_SECRET"
"""The variable with the secret of a benchmark's members: drawn by the process that starts them."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that happens (Linux). To be called first."""
    end_with_parent()
    # The parent may have died before it was asked for: then the kernel sends nothing any more.
    if os.getppid() == 1:
        sys.exit("the parent is gone")


def child_parser(*, texts: Sequence[str] = (), numbers: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command line of a child: required options with a text, and with a whole number."""
    parser = argparse.ArgumentParser()
    for names, kind in ((texts, str), (numbers, int)):
        for name in names:
            parser.add_argument(f"--{name}", type=kind, required=True)
    return parser


def run_secret() -> bytes:
    """The run's secret, the same in a process and in all that it starts."""
    # Not an argument: every account of the machine can read those.
    return bytes.fromhex(os.environ.setdefault(RUN_VARIABLE, new_secret().hex()))


class Child:
    """`python -m module arguments…` in a session of its own; ended with its whole group.

    `within` is put before the command, to run it on another host of a laboratory. `program` stands for `python -m
    module`, where that is run by another Python.

    JSON objects that it prints, one a line, are its answers; everything else is kept for error messages.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
        program: Sequence[str] = (),
    ) -> None:
        self.module = module
        self._said: list[str] = []
        self._answers: list[dict[str, Any]] = []
        self._news = threading.Condition()
        run_secret()  # in the environment from here on
        self._process = subprocess.Popen(
            [*within, *(program or (sys.executable, "-m", module)), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Unbuffered: answers are waited for while the process goes on.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self, grace_s: float = 5) -> None:
        """Ask the group to end, then kill it."""
        for sign, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10)):
            # SIGKILL in any case: the process may have left others in its group.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def check(self) -> None:
        """Raise PeerFailed when the process has ended with an error."""
        if self._process.poll() not in {None, 0}:
            raise PeerFailed(f"{self.module} ended with {self._process.returncode}:\n{self.tail()}")

    def answer(self, number: int, deadline_s: float) -> dict[str, Any]:
        """The `number`-th JSON line. Raises PeerFailed when it does not come in time."""
        with self._news:
            self._news.wait_for(lambda: len(self._answers) > number or self._ended(), deadline_s)
            if len(self._answers) > number:
                return self._answers[number]
        self.check()
        raise PeerFailed(f"{self.module} gave no answer {number} within {deadline_s:g} s:\n{self.tail()}")

    def answers(self, deadline_s: float) -> list[dict[str, Any]]:
        """All JSON lines of a process that ends by itself. Raises PeerFailed when it fails or is late."""
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"{self.module} did not end within {deadline_s:g} s:\n{self.tail()}") from None
        # The process has ended, but its last lines may still be in the pipe.
        self._reader.join(10)
        self.check()
        return list(self._answers)

    def tail(self) -> str:
        """The last lines it printed that were no answers."""
        return "".join(self._said[-TAIL:])

    def _ended(self) -> bool:
        # Both: an answer may still be in the pipe of a process that has ended.
        return self._process.poll() is not None and not self._reader.is_alive()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with self._news:
                if line.startswith("{") and (found := _parsed(line)) is not None:
                    self._answers.append(found)
                else:
                    self._said.append(line)
                    del self._said[: -10 * TAIL]
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def peer_answers(
    module: str, arguments: Sequence[str], deadline_s: float, program: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """A peer's answers. The failure of a peer is printed to standard error, with its last line, and leaves no answers:
    the figure stays without a comparison."""
    try:
        with Child(module, arguments, program=program) as peer:
            return peer.answers(deadline_s)
    except (PeerFailed, OSError) as error:  # no program of that name is an OSError
        last = str(error).strip().splitlines()[-1]
        print(f"  {module.rpartition('.')[2]} failed: {last}", file=sys.stderr, flush=True)
        return []


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
