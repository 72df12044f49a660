"""Groups whose program starts anew on all members in every generation, as a hosted job's does. Pure.

The program keeps its state itself, so members hold none and commit no step: a member whose program runs has proven
itself, and one whose program has failed says so when it parks.
"""

from dataclasses import replace

from ringleader.elastic.facts import at_work, end
from ringleader.elastic.instructions import End, Instruction, Report
from ringleader.elastic.returning import UNREACHED
from ringleader.elastic.state import Membership, Phase

Decision = tuple[Membership, tuple[Instruction, ...]]

FAILED_HINT = (
    "Fix the program: `ringleader logs` has all that it printed. A larger max_failures allows more restarts."
)


def running(state: Membership, generation: int, now: float) -> Decision:
    """Note that the program runs on a member of that generation, which is at work again with it."""
    if generation != state.generation or state.broken:
        return state, ()
    return at_work(state, now, steps_lost=None)


def spend_failed(state: Membership) -> Decision:
    """Spend a failure where the program failed by itself in this generation; too many end the attempt. One that fails
    because a member was lost is not at fault."""
    failed = sorted((m for m in state.members if m.why not in ("", UNREACHED)), key=lambda m: m.since)
    if not failed or state.lost_in == state.generation:
        return state, ()
    # The first to fail says why: the others' programs may have failed for want of it.
    first, most = failed[0], state.rules.max_failures
    state = replace(state, failures=state.spent + 1, failed_at=state.committed)
    rank = state.plan.rank_of(first.id) if state.plan else None
    data = {"worker": first.id, "rank": rank, "why": first.why, "failures": state.failures, "most": most}
    out = (Report("program.failed", state.generation, data),)
    if state.failures <= most:
        return state, out
    tries = f" It failed {state.failures} times (max_failures: {most})." if most else ""
    state, more = end(state, End("failed", "entrypoint_raised", f"{first.why}{tries}", FAILED_HINT))
    return state, out + more


def awaits_others(state: Membership, now: float) -> bool:
    """Whether members that stand still wait for workers that are starting."""
    since = max((m.since for m in state.members), default=state.last_loss)
    starting = state.where(lambda w: w.role == "worker" and w.phase is Phase.STARTING)
    # A plan without them would be followed by another one at once, and each costs a start of the program.
    return bool(starting) and now - since < state.rules.grace_s
