"""The facts in each event about the workers: the first half of the membership machine, before any decision."""

from dataclasses import replace
from typing import Any

from ringleader.elastic import events as ev
from ringleader.elastic.instructions import End, Instruction, Kill, Report
from ringleader.elastic.newcomers import arrived, expendable, set_back
from ringleader.elastic.state import Loss, Membership, Phase, Recovery, WorkerState
from ringleader.wire.states import RETRIED

RAISED_HINT = (
    "Fix the training function; ringleader.local_session runs it in one process, where you can debug it."
)

GIST_CHARS = 300

PREEMPTED = "preempted"
PREEMPTED_HINT = (
    "It continues from its checkpoint once there is room again; this does not count against max_failures."
)

ASTRAY = (
    "the program changed it outside the optimizer (through .data, for example) while this worker was following, so "
    "the change was not seen: the worker is sent the whole state while the others wait"
)

Decision = tuple[Membership, tuple[Instruction, ...]]


def note(state: Membership, event: ev.Event) -> Decision:  # noqa: PLR0911, PLR0912 - one line per kind of event
    """Write down what `event` says."""
    match event:
        case ev.Waiting(worker=worker):
            return _move(state, worker, Phase.STARTING, Phase.WAITING, event.now), ()
        case ev.Placed(worker=worker):
            return _move(state, worker, Phase.WAITING, Phase.STARTING, event.now), ()
        case ev.Parked():
            return (state, ()) if _said_before_following(state, event) else _parked(state, event)
        case ev.InSync():
            return _in_sync(state, event), ()
        case ev.Seated(generation=generation):
            return _mark(state, generation, "seated", event.now), ()
        case ev.Healed(generation=generation):
            return _mark(state, generation, "healed", event.now), ()
        case ev.Committed():
            return _committed(state, event)
        case ev.Lost(worker=worker, cause=cause):
            return lose(state, worker, cause, event.now)
        case ev.Explained(worker=worker, cause=cause):
            return state, (Report("worker.explained", state.generation, {"worker": worker, "cause": cause}),)
        case ev.Evict(worker=worker, cause=cause, since=since):
            return condemn(state, worker, cause, event.now, event.now if since is None else since)
        case ev.Resize():
            # A worker beyond the number of shards would own none.
            workers_max = min(event.workers_max, state.rules.shards)
            return replace(
                state, workers_min=min(event.workers_min, workers_max), workers_max=workers_max, resized=True
            ), ()
        case ev.Drain():
            return _drained(state, event)
        case ev.Stalled():
            return state, _told(state, event.worker, "stalled", phase=event.phase, since_s=event.since_s)
        case ev.Slow():
            return _slow(state, event)
        case ev.Tick():
            return state, ()
        case _:
            return _end_news(state, event)


def end(state: Membership, outcome: End) -> Decision:
    """End the attempt, as preempted where a failure of the cluster came while it was to go on elsewhere."""
    # A user's cancel outweighs the preemption. Losses to the cluster do not: the next attempt is elsewhere.
    goes_on = state.preempted and state.cancel_by is None
    if goes_on and (outcome.outcome == "paused" or outcome.reason in RETRIED):
        outcome = End("preempted", PREEMPTED, state.preempted, PREEMPTED_HINT)
    # Losses that wait for their step are told now: nothing follows an `End`.
    out = tuple(_report(state, loss) for loss in state.losses)
    return replace(state, ended=outcome, losses=()), (*out, outcome)


def condemn(state: Membership, worker: str, cause: str, now: float, sign: float | None = None) -> Decision:
    """Kill a worker, which counts until its death is certain. `sign`: the time at which the trouble with it began."""
    found = state.find(worker)
    if found is None or found.phase in (Phase.CONDEMNED, Phase.FINISHED):
        return state, ()
    member = found in state.members
    state = state.put(replace(found, phase=Phase.CONDEMNED, cause=cause, since=now))
    began = now if sign is None else sign
    return (_break(state, began) if member else state), (Kill(worker, cause),)


def lose(state: Membership, worker: str, cause: str, now: float, why: str = "") -> Decision:
    """Note that a worker is gone for certain."""
    found = state.find(worker)
    if found is None or found.phase is Phase.FINISHED:
        return state, ()
    member = found in state.members
    # What it was condemned for says more than the way in which its process ended.
    cause = found.cause or cause
    # It was to go anyway: no loss to report, and nothing to recover from.
    if (found.role == "server" and state.trained) or (found.cause in ("resize", "drain") and not member):
        return state.drop(worker), ()
    # Its part of the optimizer's state is nowhere else.
    if found.role == "server" and not (state.copied(found) or state.closing):
        return end(
            state, End("failed", "platform_error", f"the parameter server {worker} was lost: {cause}.")
        )
    rank = state.plan.rank_of(worker) if member and state.plan else None
    loss, spared = Loss(worker, rank, cause, why), expendable(state, found)
    state = state.drop(worker)
    if spared:
        state = set_back(state, found.role, now)
        if not member:  # the others do not stand still for it: they are told at once
            return state, (_report(state, loss),)
    state = replace(state, losses=(*state.losses, loss))
    if member:
        state = replace(_break(state, now), last_loss=now, lost_in=state.generation)
        state = replace(state, recovery=(state.recovery or Recovery(now)).mark("known", now))
    # A failure is spent only where the program may be at fault; behind the final barrier it is not, even where the lost
    # one never committed.
    if found.proven or spared or cause in ("raised", ev.NODE_DIED) or state.closing:
        return state, ()
    return _spend(state, worker, cause)


def report_losses(state: Membership) -> Decision:
    """Report the lost workers, now that the newest step anybody applied is known."""
    steps = [w.step for w in state.members if w.phase is Phase.PARKED]
    state = replace(state, committed=max([state.committed, *steps]))
    return replace(state, losses=()), tuple(_report(state, loss) for loss in state.losses)


def at_work(state: Membership, now: float, *, steps_lost: int | None) -> Decision:
    """Note that the group is at work: its members have proven that they can, and a recovery is over.

    Args:
        steps_lost: those to compute once more; None where only the program knows.
    """
    for member in state.members:
        if not member.proven:
            state = arrived(state.put(replace(member, proven=True)), member.role)
    recovery = state.recovery
    if recovery is None or recovery.formed is None:
        return state, ()
    lost = {} if steps_lost is None else {"steps_lost": steps_lost}
    told = Report("recovered", state.generation, recovery.phases(now) | lost)
    return replace(state, recovery=None), (told,)


def _report(state: Membership, loss: Loss) -> Report:
    data = {"worker": loss.worker, "rank": loss.rank, "cause": loss.cause, "step": state.committed}
    return Report("worker.lost", state.generation, {**data, "why": loss.why} if loss.why else data)


def _spend(state: Membership, worker: str, cause: str) -> Decision:
    """Spend a failure: a worker died before it ever committed, and its node lives."""
    # Counted on from what is left: failures that committed steps have given back stay given back.
    state = replace(state, failures=state.spent + 1, failed_at=state.committed)
    if state.failures <= state.rules.max_failures:
        return state, ()
    why = f"{worker} died before committing a step: {cause}."
    if state.failures > 1:
        why = f"{state.failures} workers died before committing a step; the last one was {worker}: {cause}."
    hint = "Check the last log lines for what ends the workers; a larger max_failures allows more tries."
    return end(state, End("failed", "min_workers_lost", why, hint))


def _move(state: Membership, worker: str, old: Phase, new: Phase, now: float) -> Membership:
    found = state.find(worker)
    if found is None or found.phase is not old:
        return state
    return state.put(replace(found, phase=new, since=now))


def _parked(state: Membership, event: ev.Parked) -> Decision:
    found, report = state.find(event.worker), event.report
    told: tuple[Report, ...] = ()
    if report.astray and found is not None and found.phase is Phase.FOLLOWING:
        data = {"worker": event.worker, "what": report.astray, "why": ASTRAY}
        told = (Report("worker.astray", state.generation, data),)
    return park(state, event), told


def park(state: Membership, event: ev.Parked) -> Membership:
    found, report = state.find(event.worker), event.report
    if found is None or report.generation != found.generation:
        return state  # it belongs to an earlier generation
    if found.phase not in (Phase.WAITING, Phase.STARTING, Phase.ACTIVE, Phase.FOLLOWING):
        return state
    was_following = found.phase is Phase.FOLLOWING
    in_sync = was_following and not (report.why or report.astray) and report.applied > 0
    parked = replace(
        found, phase=Phase.PARKED, why=report.why, since=event.now, in_sync=in_sync, interrupted=None
    )
    parked = replace(parked, caught_up=was_following and report.caught_up)
    if (
        was_following and report.call > found.call
    ):  # no try to follow: it was told of lines to run, and has run them
        parked = replace(parked, call=report.call, times_followed=max(0, found.times_followed - 1))
    if report.astray:  # it would go astray again
        parked = replace(parked, times_followed=state.rules.follow_tries + 1)
    # A server without its part holds no state: it must not count as a backup of the others.
    if report.step < 0:
        state = state.put(replace(parked, generation=0, applied=0, step=0, phases=0))
    else:
        state = state.put(replace(parked, applied=report.applied, step=report.step, phases=report.phases))
    # A joiner parks in generation 0: whatever ended its following, the members' exchange goes on.
    return _break(state, event.now) if report.why and report.generation else state


def _said_before_following(state: Membership, event: ev.Parked) -> bool:
    """Whether a worker only repeats that it waits to join, and has been told whom to follow meanwhile."""
    found = state.find(event.worker)
    return found is not None and found.phase is Phase.FOLLOWING and event.report.followed < found.pair


def _in_sync(state: Membership, event: ev.InSync) -> Membership:
    found = state.find(event.worker)
    # A late word of an earlier pair says nothing of this one.
    if found is None or found.phase is not Phase.FOLLOWING or found.in_sync or found.pair != event.pair:
        return state
    return state.put(replace(found, in_sync=True, since=event.now))


def _break(state: Membership, now: float) -> Membership:
    """Note that the exchange of the current plan ended without a boundary."""
    recovery = state.recovery or Recovery(sign=now)
    # A second break in one recovery: the time still runs from its first sign.
    if recovery.formed is not None:
        recovery = recovery.again(now)
    return replace(state, broken=True, recovery=recovery)


def _mark(state: Membership, generation: int, name: str, now: float) -> Membership:
    # Before the next plan is made such a word is a late one of the generation that broke.
    if state.recovery is None or generation != state.generation or state.recovery.formed is None:
        return state
    return replace(state, recovery=state.recovery.mark(name, now))


def _committed(state: Membership, event: ev.Committed) -> Decision:
    # Heartbeats tell the newest step again and again: one from before this plan ends no recovery.
    if state.plan is None or event.generation != state.generation or event.step <= state.formed_step:
        return state, ()
    found = state.find(event.worker)
    if found is None or found.phase is Phase.CONDEMNED:
        return state, ()  # back from the dead: what it says is nobody's state
    # Before `committed` grows: how far the group had been beyond the step where this plan began.
    lost = max(0, state.committed - state.formed_step)
    state = replace(state, committed=max(state.committed, event.step), futile=0)
    return at_work(state, event.now, steps_lost=lost)


def _drained(state: Membership, event: ev.Drain) -> Decision:
    found = state.find(event.worker)
    if found is None:
        return state, ()
    # The earliest deadline counts: several notices may tell of one machine.
    told = replace(found, notice=event.why, deadline=min(event.deadline, found.deadline or event.deadline))
    if found.role == "server":
        return state.put(told), ()  # a server cannot leave: it stays until it is lost
    if found not in state.members:
        return condemn(state, event.worker, "drain", event.now)
    return state.put(replace(told, leaving="drain")), ()


def _slow(state: Membership, event: ev.Slow) -> Decision:
    """Report a straggler."""
    out = _told(
        state, event.worker, "slow", step_s=event.step_s, others_s=event.others_s, evicted=event.evict
    )
    found = state.find(event.worker)
    if out and event.evict and found is not None and found.role == "worker" and not found.leaving:
        # It still works, so it leaves as in a drain, between two steps, and another one comes.
        state = state.put(replace(found, leaving="slow"))
    return state, out


def _told(state: Membership, worker: str, what: str, **facts: Any) -> tuple[Report, ...]:
    """The report to users about a member that computes; none about any other worker."""
    found = state.find(worker)
    if found is None or state.plan is None or found not in state.members or found.phase is not Phase.ACTIVE:
        return ()
    data = {"worker": worker, "rank": state.plan.rank_of(worker), "step": state.committed, **facts}
    return (Report(f"worker.{what}", state.generation, data),)


def _end_news(state: Membership, event: ev.Event) -> Decision:  # noqa: PLR0911 - one line per kind of event
    """Events that say how a worker or the attempt ends."""
    match event:
        case ev.Raised():
            return _raised(state, event)
        case ev.Failed():
            return _failed(state, event)
        case ev.Finished():
            found = state.find(event.worker)
            if found is None:
                return state, ()
            ended = replace(
                found, phase=Phase.FINISHED, digest=event.digest, since=event.now, differs=event.why
            )
            return state.put(ended), ()
        case ev.Cancel():
            return _cancelled(state, event)
        case ev.Pause():
            return _paused(state, event)
        case _:
            return state, ()


def _failed(state: Membership, event: ev.Failed) -> Decision:
    found = state.find(event.worker)
    if found is None and event.worker:
        return state, ()  # it was let go or given up before
    if found is None or not expendable(state, found):
        # Of the attempt itself, or of a worker that the group needs.
        return end(state, End("failed", event.reason, event.message, event.hint))
    state, out = lose(state, event.worker, event.reason, event.now, _gist(event.message))
    return state, (Kill(event.worker, event.reason), *out)


def _raised(state: Membership, event: ev.Raised) -> Decision:
    found = state.find(event.worker)
    if found is None:
        return state, ()
    where = (event.step, event.slice)
    if expendable(state, found):
        return _spare_who_raised(state, found, event)
    others = [m for m in state.members if m.id != found.id and m.phase in (Phase.PARKED, Phase.ACTIVE)]
    alone = found in state.members and not others  # nobody holds the state to try the slice again
    # Twice at one place, or with nobody left to try it again: that is the program's error.
    if where in state.raised or found.role == "server" or alone:
        return end(state, End("failed", "entrypoint_raised", event.traceback, RAISED_HINT))
    state = replace(state, raised=state.raised | {where})
    state, out = lose(state, event.worker, "raised", event.now)
    return state, (Kill(event.worker, "raised"), *out)


def _spare_who_raised(state: Membership, worker: WorkerState, event: ev.Raised) -> Decision:
    """Give up a newcomer that raised. What a member raised at a slice counts once a proven one raises there as well."""
    if worker in state.members:
        state = replace(state, raised=state.raised | {(event.step, event.slice)})
    state, out = lose(state, event.worker, "raised", event.now, _gist(event.traceback))
    return state, (Kill(event.worker, "raised"), *out)


def _gist(text: str) -> str:
    """The line of an exception's text or a traceback that says what it was."""
    return text.strip().rpartition("\n")[2][:GIST_CHARS]


def _cancelled(state: Membership, event: ev.Cancel) -> Decision:
    by = event.now + event.grace_s
    # Nobody computes, or nobody is to wait: there is no boundary to end at.
    if state.plan is None or state.short or event.grace_s <= 0:
        return end(state, End("cancelled"))
    # A second cancel may bring the end forward, but does not put it off.
    return replace(state, cancel_by=min(by, state.cancel_by or by)), ()


def _paused(state: Membership, event: ev.Pause) -> Decision:
    if state.plan is None:
        return end(state, End("paused"))  # this attempt has nothing that is not in an earlier checkpoint
    # The first pause counts: another one does not put the end off.
    return replace(state, pause_by=state.pause_by or event.now + event.grace_s), ()
