"""The program in the workers of a hosted Ray Train job: the function, with its output on the way to the job's logs."""

import importlib
import inspect
import io
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from ringleader.text import last_shown

MAX_LINES = 10_000


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function of Ray Train, `module:function`, with its configuration, and what its processes need."""

    entrypoint: str
    params: dict[str, Any]
    python_path: tuple[str, ...]
    threads: int


class OutputActor:
    """The lines that workers print, until the driver takes them; and the variables that the workers get. Those come by
    a call: what an actor is made with, Ray's control store keeps."""

    def __init__(self) -> None:
        self._lines: deque[tuple[str, str]] = deque(maxlen=MAX_LINES)
        self._variables: dict[str, str] = {}

    def hand_over(self, variables: dict[str, str]) -> None:
        self._variables = variables

    def variables(self) -> dict[str, str]:
        return self._variables

    def say(self, level: str, text: str) -> None:
        self._lines.append((level, text))

    def take(self) -> list[tuple[str, str]]:
        taken = list(self._lines)
        self._lines.clear()
        return taken


def in_worker(call: FunctionCall, output: Any) -> Callable[[], Any]:
    """The function for `TorchTrainer` that runs `call` in each worker."""

    def run() -> Any:
        import ray
        import torch

        os.environ.update(ray.get(output.variables.remote()))
        sys.path[:0] = call.python_path
        torch.set_num_threads(call.threads)
        rank = ray.train.get_context().get_world_rank()
        # One of them says what all do; of the others it is said who speaks.
        mark = f"rank {rank}: " if rank else ""
        with printed_to(output, mark):
            module, _, name = call.entrypoint.partition(":")
            function = getattr(importlib.import_module(module), name)
            return function(call.params) if inspect.signature(function).parameters else function()

    return run


@contextmanager
def printed_to(output: Any, mark: str) -> Iterator[None]:
    """Send what this process prints to the output actor, each line behind `mark`."""
    out, error = _Lines(output, "info", mark), _Lines(output, "error", mark)
    try:
        with redirect_stdout(out), redirect_stderr(error):
            yield
    finally:
        out.finish()
        error.finish()


class _Lines(io.TextIOBase):
    """A stream that sends each line to the output actor."""

    def __init__(self, output: Any, level: str, mark: str) -> None:
        self._output, self._level, self._mark = output, level, mark
        self._partial = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            self._output.say.remote(self._level, self._mark + last_shown(line))
        return len(text)

    def finish(self) -> None:
        """Send the line that is begun, unless nothing of it is to be seen."""
        if last_shown(self._partial).strip():
            self.write("\n")
