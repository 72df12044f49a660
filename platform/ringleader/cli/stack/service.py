"""One service of the stack: started under a guard, watched until ready, ended with all it started."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringleader.cli.stack.home import Home, read_json, write_json
from ringleader.cli.stack.process import PidIdentity
from ringleader.errors import RingleaderError
from ringleader.guard import guarded

LOG_TAIL = 15
LOG_BYTES = 16 << 20
"""The bound on a log of a service, which may run for months; the older part beside it takes as much again."""
_POLL_S = 0.05
_ELSEWHERE = frozenset(
    {"RAY_ADDRESS", "RAY_NAMESPACE", "MLFLOW_TRACKING_URI", "RINGLEADER_TOKEN", "RINGLEADER_URL"}
)
SETTINGS = "RINGLEADER_"
"""The prefix of the variables that the control plane reads. Some hold passwords, and a job can read whatever Ray's head
was started with."""
_NODES = frozenset({"RINGLEADER_SCRATCH"})
"""Those of them that the processes of a node read."""
_END_MARGIN_S = 12.0  # what the guard may take beyond the service's grace


class ServiceFailed(RingleaderError):
    """A service ended, or was not ready in time."""

    code = "service_failed"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The command line of a service, with its environment, check for readiness and deadlines.

    Attributes:
        name: that of its log and record.
        command: without the interpreter's path looked up by name.
        environ: variables on top of this process's environment.
        is_set_up: whether it gets the variables of the control plane too.
        ready: whether it is ready, from its JSON line of standard output (None before there is one).
        start_deadline_s: the time to get ready.
        grace_s: the time to end by itself after SIGTERM.
    """

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    ready: Callable[[dict[str, Any] | None], bool]
    is_set_up: bool = False
    start_deadline_s: float = 60.0
    grace_s: float = 10.0


@dataclass(slots=True)
class Service:
    """A running service, started from its recipe."""

    recipe: Recipe
    home: Home
    process: subprocess.Popen[bytes]
    log_start: int
    said: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, recipe: Recipe, home: Home) -> "Service":
        log = home.log(recipe.name)
        record = home.record(recipe.name)
        with log.open("ab") as sink:
            # The log goes on from earlier starts, whose JSON lines must not count for this one.
            start = sink.tell()
            # A session of its own: Ctrl-C in the terminal is for `up`, which ends the services in order.
            process = subprocess.Popen(
                guarded(recipe.command, grace_s=recipe.grace_s, record=record),
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                cwd=home.root,
                env={**_inherited(recipe), **recipe.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        service = cls(recipe, home, process, start)
        # At once: `down` has to find it even where it never gets ready.
        service._note([])
        return service

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_ready(self) -> dict[str, Any]:
        """Wait until it is ready, and return its JSON line.

        Raises:
            ServiceFailed: it ended or was too slow; with the end of its log.
        """
        give_up_at = time.monotonic() + self.recipe.start_deadline_s
        while time.monotonic() < give_up_at:
            if not self.alive:
                raise self._failed(f"ended with code {self.process.returncode} while starting")
            said = self._json_line()
            if self.recipe.ready(said):
                self.said = said or {}
                self._note([self.said["temp_dir"]] if "temp_dir" in self.said else [])
                return self.said
            time.sleep(_POLL_S)
        raise self._failed(f"was not ready within {self.recipe.start_deadline_s:g} s")

    def ask_to_end(self) -> None:
        """Close the pipe that its guard reads: the guard then ends the service."""
        if self.process.stdin:
            self.process.stdin.close()

    def end(self) -> None:
        """End it and wait until nothing of it is left."""
        self.ask_to_end()
        try:
            self.process.wait(self.recipe.grace_s + _END_MARGIN_S)
        except subprocess.TimeoutExpired:
            # This is the guard: the kernel kills the service with it.
            self.process.kill()
            self.process.wait(_END_MARGIN_S)

    def _note(self, remove: list[str]) -> None:
        """Record who runs and what to remove afterwards, for `down` and for the guard."""
        who = PidIdentity.of(self.process.pid)
        if who is not None:
            note = {"name": self.recipe.name, "pid": who.pid, "started": who.started, "remove": remove}
            write_json(self.home.record(self.recipe.name), note)

    def _json_line(self) -> dict[str, Any] | None:
        """The first line of its output that is a JSON object with an address or URL in it."""
        for line in _since(self.home.log(self.recipe.name), self.log_start).splitlines():
            # Looked at before it is parsed: services log lines of JSON about much else.
            if line.startswith("{") and ('"url"' in line or '"address"' in line):
                try:
                    said = json.loads(line)
                except ValueError:
                    continue
                if isinstance(said, dict) and {"url", "address"} & said.keys():
                    return said
        return None

    def _failed(self, what: str) -> ServiceFailed:
        log = self.home.log(self.recipe.name)
        tail = "\n".join(f"  | {line}" for line in _since(log, self.log_start).splitlines()[-LOG_TAIL:])
        return ServiceFailed(f"{self.recipe.name} {what}. The end of {log}:\n{tail}\n", hint=f"See {log}.")


def recorded(home: Home) -> dict[str, PidIdentity]:
    """The guards that have a record in this home, by service; some may have ended."""
    found = {p.stem: PidIdentity.read(read_json(p)) for p in sorted(home.run.glob("*.json")) if p != home.up}
    return {name: identity for name, identity in found.items() if identity is not None}


def left_by(record: Path) -> list[Path]:
    """The temporary folders that a record names and this user owns."""
    named = read_json(record).get("remove", [])
    folders = [Path(name) for name in named if isinstance(name, str)] if isinstance(named, list) else []
    # After a reboot a name may be another user's.
    return [folder for folder in folders if folder.is_dir() and folder.lstat().st_uid == os.geteuid()]


def _inherited(recipe: Recipe) -> dict[str, str]:
    """This process's environment without the variables that would send a service elsewhere or that it must not know."""
    kept = {k: v for k, v in os.environ.items() if k not in _ELSEWHERE}
    return {k: v for k, v in kept.items() if recipe.is_set_up or k in _NODES or not k.startswith(SETTINGS)}


def _since(log: Path, start: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(start)
            # Bounded, as it is read at each look: what a start prints is far less.
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def turn_over(log: Path, most_bytes: int = LOG_BYTES) -> bool:
    """Move the content of a log that has become larger to `NAME.log.1`, replacing that, and empty it; returns whether
    it did."""
    try:
        if log.stat().st_size <= most_bytes:
            return False
        partial = log.with_name(f".{log.name}.1")
        shutil.copyfile(log, partial)
        partial.replace(log.with_name(f"{log.name}.1"))
        # Emptied in place: its writer goes on, having it open for appending. What it writes in this very moment may be
        # lost.
        os.truncate(log, 0)
    except OSError:  # it is not there yet, or there is no room for two: it is looked at again
        return False
    return True
