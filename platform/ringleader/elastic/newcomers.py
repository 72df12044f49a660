"""Newcomers, workers that never committed a step: what ends one of them does not end the others, which go on without
it. Pure.

A node may be broken for all that start there, so the next ones are started after a pause that grows until one of them
commits a step. Nothing of this holds where the group needs a newcomer: before the first commit and below `workers_min`.
"""

from dataclasses import replace

from ringleader.elastic.instructions import Role
from ringleader.elastic.state import Membership, Phase, Setback, WorkerState


def expendable(state: Membership, worker: WorkerState) -> bool:
    """Whether the group does without this worker: at least `workers_min` others are at work, and have proven that they
    can."""
    at_work = (Phase.ACTIVE, Phase.PARKED, Phase.FINISHED)
    proven = [m for m in state.members if m.role == "worker" and m.proven and m.phase in at_work]
    return not worker.proven and len(proven) >= state.workers_min


def set_back(state: Membership, role: Role, now: float) -> Membership:
    """Note that a newcomer was lost."""
    before = _setback(state, role)
    # Those that had been started with it count as one: a node takes all of them along.
    if now < before.until:
        return state
    # The exponent is bounded: a float overflows beyond 2^1023.
    pause_s = min(state.rules.setback_s * 2.0 ** min(before.count, 32), state.rules.setback_most_s)
    others = arrived(state, role).setbacks
    return replace(state, setbacks=(*others, Setback(role, before.count + 1, now + pause_s)))


def arrived(state: Membership, role: Role) -> Membership:
    """Note that a newcomer committed a step: whatever was wrong, it was not so there."""
    return replace(state, setbacks=tuple(s for s in state.setbacks if s.role != role))


def held(state: Membership, role: Role, now: float) -> bool:
    """Whether a worker that the group does not need has to wait for its start."""
    return now < _setback(state, role).until


def _setback(state: Membership, role: Role) -> Setback:
    return next((s for s in state.setbacks if s.role == role), Setback(role))
