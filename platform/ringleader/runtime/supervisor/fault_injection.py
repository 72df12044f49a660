"""Faults on purpose, done where the victim is: signals to a member's process, a notice, the end of the supervisor."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from ringleader.elastic import Membership
from ringleader.elastic import events as ev
from ringleader.elastic.state import Phase, WorkerState

if TYPE_CHECKING:
    from ringleader.runtime.supervisor.workers.worker_group import WorkerGroup

STOPPED_S, RUNNING_S = 0.06, 0.02
"""The seconds that a slow process is stopped and runs in turn: stopped too briefly to be taken for frozen."""
LAST_WORDS_S = 0.3
COMES_S = 15.0
"""The longest wait for a newcomer: an answer to the control plane may take no longer."""
# A joiner may heal within some milliseconds: a slower look would miss it.
LOOK_S = 0.005
WITH_STATE = 2
"""The number of workers that have to hold the state before one of them may be killed."""


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """The outcome of a fault order. `said`: what was done, or why nothing was."""

    done: bool
    said: str


def strike(
    fault: str,
    worker: str | None,
    for_s: float,
    *,
    look: Callable[[], Membership],
    worker_group: "WorkerGroup",
    post: Callable[[ev.Event], None],
) -> FaultOutcome:
    """Inject one fault of `wire.faults` into a member of the present plan; `look`: the membership as it is now."""
    state = look()
    if fault == "supervisor":
        # Later than the answer: the control plane has to hear what was done.
        threading.Timer(LAST_WORDS_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return FaultOutcome(True, f"SIGKILL to the supervisor, process {os.getpid()}")
    member = next((m for m in state.members if m.id == worker), None)
    identity = worker_group.identity(member.id) if member is not None else None
    if member is None or identity is None or state.plan is None or not worker_group.knows(member.id):
        return FaultOutcome(False, f"the job has no member {worker} at present.")
    if (member.role == "server") != (fault == "server"):
        return FaultOutcome(
            False, f"{member.id} is a {member.role}, which the fault {fault} does not apply to."
        )
    who = f"process {identity.pid}, rank {state.plan.rank_of(member.id)}"
    if fault == "drain":
        post(ev.Drain(member.id, monotonic() + for_s, monotonic()))
        return FaultOutcome(True, f"notice to {who} that its machine goes away in {for_s:g} s")
    if fault == "slow":
        worker_group.befall(member.id, hamper, for_s)
        return FaultOutcome(True, f"{who} is stopped for three quarters of the next {for_s:g} s")
    return _signal(fault, member, who, look, worker_group)


def _signal(
    fault: str, member: WorkerState, who: str, look: Callable[[], Membership], worker_group: "WorkerGroup"
) -> FaultOutcome:
    donor = fault == "donor"
    if donor and len(_with_state(look())) <= WITH_STATE:
        return FaultOutcome(False, f"without {member.id} and a donor no worker would hold the state.")
    # Before the signal: whoever is new from here on came for the victim.
    before = {m.id for m in look().members}
    sign = signal.SIGSTOP if fault == "freeze" else signal.SIGKILL
    worker_group.befall(member.id, send, sign)
    if fault not in ("joiner", "donor"):
        return FaultOutcome(True, f"{sign.name} to {who}")
    return FaultOutcome(True, f"{sign.name} to {who}, {_ambush(look, worker_group, before, donor=donor)}")


def _ambush(
    look: Callable[[], Membership], worker_group: "WorkerGroup", before: set[str], *, donor: bool
) -> str:
    """Kill a newcomer, no member `before`, while it joins, or with `donor` the worker whose state it takes.

    Returns what was done.
    """
    until = monotonic() + COMES_S
    while monotonic() < until and (state := look()).ended is None:
        for comer in state.where(lambda w: w.role == "worker" and not w.proven and w.id not in before):
            found = _donor(state, comer) if donor else comer
            joins = comer.phase in (Phase.FOLLOWING, Phase.ACTIVE)
            if joins and found is not None and (identity := worker_group.identity(found.id)) is not None:
                worker_group.befall(found.id, send, signal.SIGKILL)
                what = f"which was sending its state to {comer.id}" if donor else "its replacement"
                return f"and to {found.id}, process {identity.pid}, {what}"
        time.sleep(LOOK_S)
    return f"and no replacement came within {COMES_S:g} s"


def _donor(state: Membership, comer: WorkerState) -> WorkerState | None:
    """The worker that gives its state to the newcomer; None where no other one holds the state."""
    heals = dict(state.plan.heals) if state.plan is not None else {}
    name = comer.donor if comer.phase is Phase.FOLLOWING else heals.get(comer.id, "")
    holders = _with_state(state)
    return next((w for w in holders if w.id == name), None) if len(holders) >= WITH_STATE else None


def _with_state(state: Membership) -> list[WorkerState]:
    return [m for m in state.members if m.role == "worker" and m.proven and m.phase is Phase.ACTIVE]


def send(pid: int, sign: int) -> None:
    """Send a signal to a process that may be gone."""
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
            # However the loop was left: nobody else would ever wake the process.
            os.kill(pid, signal.SIGCONT)
