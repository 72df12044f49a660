"""Preemption, for machines that go away at a known time: all stop before it where the others could not go on without
them."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ringleader.elastic.events import Tick
from ringleader.elastic.state import Membership, WorkerState


def preempt(state: Membership, tick: Tick) -> Membership:
    """Pause the attempt early enough for a checkpoint, so that the job goes on from there where there is room.

    If a machine is gone before that, those that are left save what they have: nothing has to be done by the deadline.
    """
    ends = state.pause_by is not None or state.cancel_by is not None
    comes = state.announced and not (state.broken or state.gathered)  # at that boundary there may be enough
    if state.plan is None or state.closing or ends or comes:
        return state
    # Twice what was measured: a step and a file may take longer than any so far.
    going = _going(state, tick.now + max(state.rules.save_s, 2 * tick.saving_s))
    if not going or not (why := _missed(state, going)):
        return state
    # The pause may outlast the machines: whatever is left then still saves.
    latest = max(tick.now, *(w.deadline or tick.now for w in going))
    return replace(state, pause_by=latest + state.rules.recover_s, preempted=why)


def _going(state: Membership, by: float) -> tuple[WorkerState, ...]:
    """The members whose machines will be gone by that time."""
    return tuple(m for m in state.members if (m.deadline or inf) <= by)


def _missed(state: Membership, going: Sequence[WorkerState]) -> str:
    """The reason for which the others cannot go on without them; empty where they can."""
    left = [w for w in state.pool if w not in going]
    notices = ", ".join(f"{w.id} ({w.notice or 'drain'})" for w in going)
    if len(left) < state.workers_min:
        would_be = f"{len(left)} would be left, and workers.min is {state.workers_min}"
        return f"the machines of {notices} are going away: {would_be}."
    rest = state
    for worker in going:
        rest = rest.drop(worker.id)
    servers = [w for w in going if w.role == "server"]
    if all(rest.copied(server) for server in servers):
        return ""
    return (
        f"the machines of {notices} are going away, and the state of the servers on them exists nowhere else."
    )
