"""The process that runs a job's program beside it, as a joiner would now, and changes nothing.

It is given a joiner's state, runs on to the session call that the job is in, and compares there and on its way. It is
started by `train/program_check/background.py`.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import torch

from ringleader.comm.objects import unpacked_of_any_type
from ringleader.comm.seal import Seal
from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec
from ringleader.train.generation.starting.initial_weights import Beginning
from ringleader.train.modes.registry import mode_of
from ringleader.train.program_check.background import FOUND, ORDER, SCOPE, STATE
from ringleader.train.program_check.runs import LateSession, call, in_one_process, raised
from ringleader.train.program_check.sandbox import ActionRefused, Sandbox
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.run import function_of

GRACE_S = 5
"""Seconds from SIGXCPU, which tells that CPU time ran out, to SIGKILL, which cannot be caught."""
MEMORY_SHARE = 0.5
"""The most of the node's free memory that it takes."""


class JoinerSession(LateSession):
    """A session of all rows, as a joiner of a running job would have it.

    Args:
        arrived: called when it has reached the call that the job is in, before any step.
    """

    def __init__(
        self,
        spec: JobSpec,
        beginning: Beginning,
        given: Any,
        most: int,
        harmless: Sandbox,
        *,
        arrived: Callable[["JoinerSession"], None],
    ) -> None:
        super().__init__(in_one_process(spec), None, beginning, most, given)
        # What servers keep is as closed to the program here: it has another text than a ring's, which is empty here.
        self._checks.states.serve(mode_of(spec.sync).rules(spec.sync).has_servers)
        self._harmless = harmless
        self._until = inf
        self._arrived = arrived

    @property
    def found(self) -> list[dict[str, Any]]:
        return [asdict(found) for found in self._member.variables.found.values()]

    def _begin_call(self, dataset: Any = None) -> int:
        if self._harmless.why:  # and the program did not notice
            raise ActionRefused
        return super()._begin_call(dataset)

    def _arrive(self) -> None:
        self._arrived(self)

    def _few(self, dataset: Any) -> Any:
        return dataset


def check(
    folder: Path, order: dict[str, Any], arrived: Callable[[JoinerSession], None] = lambda _: None
) -> dict[str, Any]:
    """Run the program; returns {"found": variables that differ, "raised": exceptions of joiners only, "until": the
    place where it had to end early, "error": the reason why it could not begin, "computed": see
    `LateSession`}."""
    spec = JobSpec.parse(order["spec"])
    torch.set_num_threads(order["threads"])  # sums of many numbers have other bits with another number
    beginning = Beginning(spec.init_from)
    beginning.read()  # now, as they may be where the program is not let
    harmless = Sandbox(folder)
    told: dict[str, Any] = {"found": [], "raised": [], "until": "", "error": "", "computed": None}
    try:
        function = function_of(spec)
    except RingleaderError as refused:
        return told | {"until": harmless.why, "error": "" if harmless.why else refused.message}
    size = (folder / STATE).stat().st_size
    payload = torch.from_file(str(folder / STATE), size=size, dtype=torch.uint8)
    given = unpacked_of_any_type(payload, Seal(bytes.fromhex(order["secret"]), SCOPE))
    seed_all(spec.seed, "init")
    session = JoinerSession(spec, beginning, given, order["call"], harmless, arrived=arrived)
    error: BaseException | None = None
    try:
        error = call(function, session)
    except ActionRefused:
        pass
    finally:
        session._close()
    told |= {"found": session.found, "computed": session.computed}
    if harmless.why or error is None:
        return told | {"until": harmless.why}
    finding = raised(error)
    if _of_this_process(error):
        return told | {
            "until": f"{finding['line']}, where the check lacks memory or the right to write ({error})"
        }
    return told | {"raised": [finding]}


def main(place: str) -> None:
    """Write the findings into the folder."""
    folder = Path(place)
    order = json.loads((folder / ORDER).read_text())
    _bound(order["cpu_s"])
    # Before a step is computed, for which the process may be given too little time or memory.
    told = check(folder, order, lambda session: _leave(folder, {"found": session.found}))
    _leave(folder, told)
    os._exit(0)  # what the program has left running waits for nobody


def _leave(folder: Path, told: dict[str, Any]) -> None:
    # In one move: the process may be killed at any moment, and what lies there is read.
    partial = folder / f"{FOUND}.partial"
    partial.write_text(json.dumps(told))
    partial.replace(folder / FOUND)


def _of_this_process(error: BaseException) -> bool:
    """Whether the error comes from a limit of this process, which no worker has."""
    short = ("can't allocate memory", "Permission denied", "Operation not permitted")
    return isinstance(error, MemoryError) or any(words in str(error) for words in short)


def _bound(cpu_s: int) -> None:
    # The limit counts from the start of the process, its imports included.
    most_s = int(time.process_time()) + 1 + cpu_s
    hard_s = resource.getrlimit(resource.RLIMIT_CPU)[1]  # which cannot be raised
    resource.setrlimit(
        resource.RLIMIT_CPU, (most_s, most_s + GRACE_S) if hard_s < 0 else (min(most_s, hard_s), hard_s)
    )
    # SIGXCPU writes a core file by default, as large as the process.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        has, free = _kilobytes("/proc/self/status", "VmData"), _kilobytes("/proc/meminfo", "MemAvailable")
        most = (has + int(MEMORY_SHARE * free)) << 10
        # On Linux it bounds private mappings, too, from which large tensors get their memory.
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _kilobytes(file: str, name: str) -> int:
    line = next(line for line in Path(file).read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
