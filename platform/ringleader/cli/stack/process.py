"""Processes by identity: a pid alone may have been given to another process since."""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class PidIdentity:
    """A pid and its start: the boot's id, and clock ticks since then."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this pid now; None where there is none, or only its zombie."""
        try:
            # Split behind the last bracket: the command's name before it may hold spaces and brackets itself.
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except (OSError, ValueError):
            return None
        # fields[18] is starttime, field 22 of proc(5).
        return None if state in {"Z", "X"} else cls(pid, f"{boot}:{fields[18]}")

    @classmethod
    def read(cls, record: dict[str, Any]) -> Self | None:
        """The identity in a record."""
        try:
            return cls(int(record["pid"]), str(record["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def alive(self) -> bool:
        return PidIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal this very process: the pidfd makes sure that nobody else gets it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # Compared after the pidfd is open: from then on the pid cannot pass to another process unnoticed.
            if self.alive:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)


def wait_gone(who: Iterable[PidIdentity], deadline_s: float) -> list[PidIdentity]:
    """Wait until all have ended; returns those still alive at the deadline."""
    give_up_at = time.monotonic() + deadline_s
    left = [identity for identity in who if identity.alive]
    while left and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
        left = [identity for identity in left if identity.alive]
    return left


def end(who: Iterable[PidIdentity], grace_s: float) -> None:
    """Send SIGTERM to all, and SIGKILL to those still alive after `grace_s`."""
    asked = list(who)
    for identity in asked:
        identity.send(signal.SIGTERM)
    for identity in wait_gone(asked, grace_s):
        identity.send(signal.SIGKILL)
    wait_gone(asked, deadline_s=5)
