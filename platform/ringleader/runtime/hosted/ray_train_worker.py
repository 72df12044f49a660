"""The program in the workers of a hosted Ray Train job: the function, with its output on the way to the job's logs."""

import importlib
import inspect
import io
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

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
        with redirect_stdout(_Lines(output, "info", mark)), redirect_stderr(_Lines(output, "error", mark)):
            module, _, name = call.entrypoint.partition(":")
            function = getattr(importlib.import_module(module), name)
            return function(call.params) if inspect.signature(function).parameters else function()

    return run


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
            # A progress bar rewrites its line: what it showed last counts.
            self._output.say.remote(self._level, self._mark + line.rsplit("\r", 1)[-1])
        return len(text)
