"""Faults on purpose, done where the victim is: signals to a member's process, a notice, the end of the supervisor."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from ringleader.elastic import Membership
from ringleader.elastic import events as ev
from ringleader.runtime.crew import Crew

STOPPED_S, RUNNING_S = 0.06, 0.02
"""A slow process is stopped three quarters of the time: too short for anybody who looks to call it frozen."""
LAST_WORDS_S = 0.3


@dataclass(frozen=True, slots=True)
class Struck:
    """What came of an order. `said` is what was done, or why nothing was."""

    done: bool
    said: str


def strike(
    fault: str,
    worker: str | None,
    for_s: float,
    *,
    state: Membership,
    crew: Crew,
    post: Callable[[ev.Event], None],
) -> Struck:
    """Do one fault of `wire.faults` to a member of the present plan."""
    if fault == "supervisor":
        threading.Timer(LAST_WORDS_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return Struck(True, f"SIGKILL to the supervisor, process {os.getpid()}")
    member = next((m for m in state.members if m.id == worker), None)
    identity = crew.identity(member.id) if member is not None else None
    if member is None or identity is None or state.plan is None or not crew.knows(member.id):
        return Struck(False, f"there is no member {worker} now.")
    if (member.role == "server") != (fault == "server"):
        return Struck(False, f"{member.id} is a {member.role}: {fault} is not for it.")
    who = f"process {identity.pid}, rank {state.plan.rank_of(member.id)}"
    if fault == "drain":
        post(ev.Drain(member.id, monotonic() + for_s, monotonic()))
        return Struck(True, f"notice to {who}: its machine goes away in {for_s:g} s")
    if fault == "slow":
        crew.befall(member.id, hamper, for_s)
        return Struck(True, f"{who} is stopped three quarters of the next {for_s:g} s")
    sign = signal.SIGSTOP if fault == "freeze" else signal.SIGKILL
    crew.befall(member.id, send, sign)
    return Struck(True, f"{sign.name} to {who}")


def send(pid: int, sign: int) -> None:
    """A signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, sign)


def hamper(pid: int, for_s: float) -> None:
    """Let a process run a quarter of the time. Returns at once."""
    threading.Thread(target=_hamper, args=(pid, monotonic() + for_s), name="hamper", daemon=True).start()


def _hamper(pid: int, until: float) -> None:
    with suppress(ProcessLookupError):
        try:
            while monotonic() < until:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNNING_S)
        finally:
            os.kill(pid, signal.SIGCONT)
