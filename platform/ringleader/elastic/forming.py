"""The making of the next plan from those who are parked: ranks, where to start, who heals from whom."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ringleader.elastic.instructions import Dismiss, Form, Instruction, Report
from ringleader.elastic.parts import holders
from ringleader.elastic.plan import NOWHERE, Plan
from ringleader.elastic.state import PAUSE, SHORT, Membership, Phase, WorkerState

Decision = tuple[Membership, tuple[Instruction, ...]]


def newest_transaction(state: Membership) -> int | None:
    """The newest step whose state a parked member holds; None when every holder of the state is gone."""
    floor = state.plan.start_transaction if state.plan else 0
    # A server that has applied a step before the others could does not count: the plan repeats the step, and that
    # server does not apply it again. Nor do workers whose weights are of a step that no server is left of: they have no
    # optimizer state to go on with.
    applied = [
        w.applied for w in state.members if w.phase is Phase.PARKED and w.stands <= newest_complete(state)
    ]
    step = max(applied, default=0)
    # Short of the step from which this generation began: nobody has that state any more. As long as no step has been
    # committed anybody may begin from scratch.
    if step < floor or (state.committed > 0 and not applied):
        return None
    return step


def newest_complete(state: Membership) -> tuple[float, int]:
    """The global steps, and phases of the next, of which the parked servers together hold the whole state: those that
    every one has applied if each has a part, those that any has applied if each has a copy. No bound without servers,
    or where steps say nothing about the state; -1 where some part is held by nobody."""
    rules = state.rules
    if not rules.servers or state.plan is None:
        return inf, 0
    if not all(_held_by(state)) and not state.closing:
        return -1, 0
    if rules.own_step_counts:
        return inf, 0
    # The least of all also where parts have backups: the others repeat what some are ahead with, rather than take it
    # from them. A server that is lost before they are level then takes nothing along that is nowhere else.
    return (max if rules.copies else min)((w.stands for w in _servers(state)), default=(inf, 0))


def alone(state: Membership) -> bool:
    """Whether a single parked member holds the whole state, or a part of it."""
    if not state.rules.servers:
        return len([w for w in state.members if w.phase is Phase.PARKED]) == 1
    return any(len(servers) == 1 for servers in _held_by(state))


def _held_by(state: Membership) -> tuple[tuple[int, ...], ...]:
    """The parked servers that hold each part of the state, by part."""
    rules = state.rules
    others = rules.servers - 1 if rules.copies else rules.backups
    return holders([w.slot for w in _servers(state)], rules.servers, others)


def _servers(state: Membership) -> list[WorkerState]:
    return [w for w in state.members if w.phase is Phase.PARKED and w.role == "server"]


def form(state: Membership, start_transaction: int, now: float) -> Decision:
    """Make the plan after the current one, of parked workers alone. Where they are fewer than `workers_min` it is one
    for saving, unless the attempt ends with it anyway."""
    cause = _cause(state)
    workers = _choose(state, start_transaction, cause)
    servers = _choose_servers(state, start_transaction, cause)
    members = (*workers, *servers)
    plan = Plan(
        attempt=state.rules.attempt,
        generation=state.generation + 1,
        members=tuple(m.id for m in members),
        servers=len(servers),
        shards=state.rules.shards,
        start_transaction=start_transaction,
        heals=_heals(workers, servers, start_transaction, newest_complete(state)),
        # This and `meeting` are filled in by the supervisor: a pure decision knows no store.
        recorded_step=0,
        meeting=NOWHERE,
        cause=cause,
        parts=state.rules.servers,
        backups=state.rules.backups,
        slots=tuple(s.slot for s in servers),
        start=state.start,
    )
    joined = [m for m in members if m.generation == 0]
    state, dismissed = _dismiss(_seat(state, members, plan, now), plan)
    return state, (Form(plan), *dismissed, *_reports(plan, joined, state.formed_step))


def _choose(state: Membership, start_transaction: int, cause: str) -> tuple[WorkerState, ...]:
    """The workers of the plan in rank order: those that stay keep their order, joiners stand behind them."""
    stay = [w for w in state.members if w.phase is Phase.PARKED and w.role == "worker"]
    if state.closing or cause == SHORT or (state.pausing and stay):
        return tuple(stay)
    chosen = [w for w in stay if not w.leaving]
    joiners = state.where(lambda w: w.ready and w.role == "worker")
    chosen += [w for w in joiners if state.due(w)]
    # Joiners stand last, so that they are the ones left out.
    chosen = chosen[: state.workers_max]
    # One that could still follow a member is healed while all wait only where `workers_min` needs it.
    chosen += [w for w in joiners if not state.due(w)][: max(0, state.workers_min - len(chosen))]
    # Those that can stay longest first; without a deadline that is for ever.
    leaving = sorted((w for w in stay if w.leaving), key=lambda w: -(w.deadline or inf))
    # A worker that has to leave stays for one more generation where `workers_min` or the newest state depends on it.
    needed = max(0, state.workers_min - len(chosen))
    if state.plan and not state.rules.servers and not any(_holds(w, start_transaction) for w in chosen):
        # Stable: among those that hold it, the one that can stay longest is still first.
        leaving.sort(
            key=lambda w: not _holds(w, start_transaction)
        )  # the newest state must not leave with them
        needed = max(1, needed)
    return (*chosen, *leaving[:needed]) if needed else tuple(chosen)


def _choose_servers(state: Membership, start_transaction: int, cause: str) -> tuple[WorkerState, ...]:
    """The servers of the plan: all that are parked, but a new one only when servers can heal it, and none of them is
    ahead of the others."""
    servers = state.where(lambda w: w.role == "server" and w.phase is Phase.PARKED)
    servers = tuple(w for w in servers if not w.ready or state.due(w))
    torn = any(not w.ready and w.stands > newest_complete(state) for w in servers)
    # By servers: they alone have the optimizer's state. While they stand at different steps a new one waits: the step
    # is repeated first.
    healed = any(_holds(w, start_transaction) for w in servers) and not torn
    if not (state.closing or cause == SHORT) and (start_transaction == 0 or healed):
        return servers
    return tuple(w for w in servers if not w.ready)


def _holds(worker: WorkerState, start_transaction: int) -> bool:
    return (worker.generation > 0 or worker.in_sync) and worker.applied == start_transaction


def _heals(
    workers: Sequence[WorkerState],
    servers: Sequence[WorkerState],
    start_transaction: int,
    complete: tuple[float, int],
) -> tuple[tuple[str, str], ...]:
    """Pairs of (receiver, donor). Before the first step everybody takes the state of one member; later donors take
    turns. A server that is ahead is no donor."""
    if start_transaction == 0:
        # One donor for all, so that all are equal even if the user's function is unseeded.
        donors = [w for w in (*servers, *workers) if w.stands <= complete][:1]
        # Everybody, also those with equal weights: that they are equal is not known before the first step.
        behind = [w for w in (*workers, *servers) if w is not donors[0]]
    else:
        holders = [w for w in (*servers, *workers) if _holds(w, start_transaction) and w.stands <= complete]
        # Servers first: only they have the optimizer's state.
        donors = [w for w in holders if w.role == "server"] or holders
        behind = [w for w in (*workers, *servers) if w not in holders]
    return tuple((w.id, donors[i % len(donors)].id) for i, w in enumerate(behind))


def _cause(state: Membership) -> str:
    if state.plan is None:
        return "start"
    if state.short and not state.pausing:
        return SHORT
    if state.broken:
        return "lost"
    if state.pausing:  # everybody is parked at one boundary, and only then
        return PAUSE
    leaving = [m.leaving for m in state.members if m.leaving]
    if leaving:
        # Of several reasons the one that could wait least.
        return next(cause for cause in ("drain", "slow", "resize") if cause in leaving)
    return "resize" if state.resized else "join"


def _seat(state: Membership, members: Sequence[WorkerState], plan: Plan, now: float) -> Membership:
    for member in members:
        state = state.put(
            replace(
                member,
                phase=Phase.ACTIVE,
                since=now,
                generation=plan.generation,
                why="",
                interrupted=None,
                in_sync=False,
                caught_up=False,
            )
        )
    for left_out in state.where(lambda w: w.ready and w.in_sync):  # the others go on without it
        state = state.put(replace(left_out, in_sync=False))
    if state.broken:  # whom they followed was lost, or gave up with the others
        tried = state.where(lambda w: w.generation == 0 and w.times_followed <= state.rules.follow_tries)
        for outside in tried:
            state = state.put(replace(outside, times_followed=int(outside.phase is Phase.FOLLOWING)))
    saves = plan.cause == SHORT  # whoever waits for others waits on: the recovery is the plan behind it
    recovery = state.recovery if saves or not state.recovery else state.recovery.mark("formed", now)
    return replace(
        state,
        generation=plan.generation,
        plan=plan,
        # The step of the one that is furthest: only a commit beyond it is progress.
        formed_step=max((m.step for m in members), default=0),
        announced=0,
        broken=False,
        resized=False,
        recovery=recovery,
        short_since=state.short_since if saves else None,
    )


def _dismiss(state: Membership, plan: Plan) -> Decision:
    """Dismiss parked workers that had to leave and are not in the plan."""
    gone = state.where(lambda w: w.phase is Phase.PARKED and bool(w.leaving) and w.id not in plan.members)
    for worker in gone:
        state = state.drop(worker.id)
    left = tuple(
        Report(
            "worker.left",
            plan.generation,
            {"worker": w.id, "cause": w.leaving, "why": w.notice, "step": w.step},
        )
        for w in gone
    )
    return state, (*left, *(Dismiss(w.id) for w in gone))


def _reports(plan: Plan, joined: Sequence[WorkerState], step: int) -> tuple[Report, ...]:
    data = {"members": list(plan.members), "cause": plan.cause, "step": step, "world": plan.world}
    formed = Report("generation.formed", plan.generation, data)
    return (
        formed,
        *(
            Report(
                "worker.joined",
                plan.generation,
                {"worker": w.id, "rank": plan.rank_of(w.id), "step": step},
            )
            for w in joined
        ),
    )
