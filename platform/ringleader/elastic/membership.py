"""The membership machine: one event in, the next state and what to do out. Pure: no clock, no I/O, no randomness.

One mechanism serves the start, a loss, a joiner, a resize and a drain: everybody parks, then a plan is formed.
`handle` writes down what the event says (facts.py), then applies the same few rules to all that is known: who is
missing is started, who must park is told, and when nobody computes any more the next plan is made (forming.py).
"""

from collections.abc import Sequence
from dataclasses import replace

from ringleader.elastic import events as ev
from ringleader.elastic.facts import condemn, end, lose, note, report_losses
from ringleader.elastic.forming import alone, form, newest_transaction
from ringleader.elastic.instructions import (
    Announce,
    Dismiss,
    End,
    Follow,
    Instruction,
    Interrupt,
    Kill,
    Role,
    Start,
)
from ringleader.elastic.newcomers import expendable, held
from ringleader.elastic.preempting import preempt
from ringleader.elastic.restarts import awaits_others, running, spend_failed
from ringleader.elastic.returning import returned
from ringleader.elastic.state import AttemptRules, Membership, Phase, WorkerState

Decision = tuple[Membership, tuple[Instruction, ...]]

LAST_HOLDER = 8
"""The multiple of the usual patience for the last holder of state: the attempt would end with it, so a machine that is
only busy gets its chance. Frozen members are found by their heartbeats, not by this."""


def begin(rules: AttemptRules, *, workers_min: int, workers_max: int, now: float) -> Decision:
    """The state of a new attempt and the instructions that start its workers."""
    state = Membership(rules=rules, workers_min=workers_min, workers_max=min(workers_max, rules.shards))
    return _staff(state, now)


def handle(state: Membership, event: ev.Event) -> Decision:
    """Apply one event to the state.

    Returns:
        the next state, and the instructions to carry out in their order. Nothing follows an `End`.
    """
    if state.ended:
        return state, ()
    state, out = returned(state, event) if isinstance(event, ev.Returned) else note(state, event)
    if isinstance(event, ev.Healed) and state.rules.restarts:
        state, more = running(state, event.generation, event.now)
        out += more
    if isinstance(event, ev.Tick) and not state.ended:
        state, more = _expire(state, event)
        out += more
    # `_follow` before `_announce`, which puts a join off for followers; `_form` last, on what they leave.
    for rule in (_staff, _close, _interrupt, _follow, _announce, _form):
        if state.ended:
            break
        state, more = rule(state, event.now)
        out += more
    return state, out


def _staff(state: Membership, now: float) -> Decision:
    """Start workers that are missing, let go those that are too many."""
    if state.closing or state.cancel_by is not None or state.pausing:
        return state, ()
    state, servers = _replace_servers(state, now)
    state, workers = _staff_workers(state, now)
    return state, servers + workers


def _replace_servers(state: Membership, now: float) -> Decision:
    """Replace a lost server where others can heal the new one; elsewhere its loss ends the attempt."""
    rules = state.rules
    # Where others hold its state, a condemned server's slot is filled before its death is certain.
    condemned = Phase.CONDEMNED if rules.copies or rules.backups else None
    taken = {w.slot for w in state.where(lambda w: w.role == "server" and w.phase is not condemned)}
    slots = [] if held(state, "server", now) else range(rules.servers)
    return _start(state, "server", [slot for slot in slots if slot not in taken], now)


def _staff_workers(state: Membership, now: float) -> Decision:
    staff = state.where(lambda w: w.role == "worker" and not w.leaving and w.phase is not Phase.CONDEMNED)
    missing = state.workers_max - len(staff)
    if missing < 0:
        return _retire(state, staff, -missing, now)
    # The group is to grow again: whoever still waits to leave stays instead of a new one.
    for worker in state.where(lambda w: w.leaving == "resize")[:missing]:
        state, missing = state.put(replace(worker, leaving="")), missing - 1
    if held(state, "worker", now):
        missing -= state.workers_max - state.workers_min  # below `workers_min` nobody waits
    return _start(state, "worker", [0] * missing, now)


def _start(state: Membership, role: Role, slots: Sequence[int], now: float) -> Decision:
    out: tuple[Instruction, ...] = ()
    for slot in slots:
        # A number is given once: a late word of a lost worker is never taken for its replacement's.
        name = f"{role[0]}{state.named}"
        worker = WorkerState(id=name, role=role, phase=Phase.STARTING, since=now, slot=slot)
        state = replace(state, workers=(*state.workers, worker), named=state.named + 1)
        out += (Start(name, role),)
    return state, out


def _retire(state: Membership, staff: tuple[WorkerState, ...], count: int, now: float) -> Decision:
    """Let `count` workers go: those without work first, then the highest ranks. Members leave at a boundary."""
    members = [w for w in state.members if w in staff]
    outside = [w for w in staff if w not in members]
    # Whoever is not ready yet goes first: it is missed least.
    order = sorted(outside, key=lambda w: w.phase is Phase.PARKED) + list(reversed(members))
    out: tuple[Instruction, ...] = ()
    for worker in order[:count]:
        if worker in members:
            state = state.put(replace(worker, leaving="resize"))
        elif worker.phase is Phase.PARKED:
            state, out = state.drop(worker.id), (*out, Dismiss(worker.id))
        else:
            condemned = replace(worker, phase=Phase.CONDEMNED, cause="resize", since=now)
            state, out = state.put(condemned), (*out, Kill(worker.id, "resize"))
    return state, out


def _close(state: Membership, now: float) -> Decision:
    """End the attempt once everybody passed the final barrier."""
    # Whoever was lost behind a member that passed it had passed all steps too.
    if not state.trained or any(m.phase is Phase.ACTIVE for m in state.members):
        return state, ()  # a server may still have records to hand out
    digests: dict[str, str] = {}
    ended = state.where(lambda w: w.role == "worker" and bool(w.digest))
    for worker in ended:
        digests.setdefault(worker.digest, worker.id)
    if len(digests) > 1:
        parts = ", ".join(f"{worker} has {digest}" for digest, worker in digests.items())
        message = f"the members' final weights differ: {parts}."
        why = next((worker.differs for worker in ended if worker.differs), "")
        if why:
            return end(state, End("failed", "entrypoint_raised", f"{message} {why[0].upper()}{why[1:]}."))
        return end(state, End("failed", "platform_error", message))
    return end(state, End("cancelled" if state.cancel_by is not None else "succeeded"))


def _interrupt(state: Membership, now: float) -> Decision:
    """Interrupt every member that still computes after a failure, so that it parks. Interrupt followers as well
    then, and where too few are left to go on."""
    stuck = state.plan is not None and _all_stand(state, now) and len(state.pool) < state.workers_min
    # Not on a planned boundary: there members park by themselves, with nothing broken.
    halted = {Phase.ACTIVE} if state.broken else set()
    # Followers too: nothing more will come from their donors, and the group waits for those that still run lines.
    halted |= {Phase.FOLLOWING} if state.broken or stuck else set()
    out: tuple[Instruction, ...] = ()
    for worker in state.where(lambda w: w.phase in halted and w.interrupted is None):
        state = state.put(replace(worker, interrupted=now))
        out += (Interrupt(worker.id, state.generation),)
    return state, out


def _follow(state: Membership, now: float) -> Decision:
    """Let each worker that is ready to join follow a member first, each another one, while the group goes on."""
    donors = [m for m in state.members if m.phase is Phase.ACTIVE and m.role == "worker" and not m.leaving]
    ends = state.closing or state.pausing or state.cancel_by is not None
    if not donors or ends or state.broken or state.announced or state.resting:
        return state, ()
    out: tuple[Instruction, ...] = ()
    joiners = [w for w in state.where(lambda w: w.ready) if not state.due(w)]
    for joiner in joiners:
        # There is no place for it now, and following would cost its donor time.
        if joiner.role == "worker" and _filled(state):
            continue
        number = state.pairs_made + 1
        # Donors take turns: each sends beside its own training.
        donor = donors[number % len(donors)].id
        tries = joiner.times_followed + 1
        follower = replace(
            joiner, phase=Phase.FOLLOWING, since=now, times_followed=tries, pair=number, donor=donor
        )
        state = replace(state.put(follower), pairs_made=number)
        out += (Follow(joiner.id, donor, number),)
    return state, out


def _announce(state: Membership, now: float) -> Decision:
    """Announce a planned change: all members park at the same boundary."""
    if state.plan is None or state.broken or state.closing or state.announced:
        return state, ()
    ends = state.cancel_by is not None or (state.pausing and not state.saved)
    if state.resting and not ends:
        comes = len(state.pool) >= state.workers_min
    else:
        comes = not state.pausing and (_somebody_leaves(state) or _somebody_joins(state, now))
    if not (ends or comes):
        return state, ()
    state = replace(state, announced=state.generation + 1)
    return state, tuple(Announce(m.id, state.announced) for m in state.members)


def _somebody_leaves(state: Membership) -> bool:
    # Whoever `workers_min` needs stays until somebody else has come.
    return any(m.leaving for m in state.members) and len(state.pool) > state.workers_min


def _somebody_joins(state: Membership, now: float) -> bool:
    if state.where(lambda w: w.ready and w.role == "server" and state.due(w)):
        return True
    follow = state.where(lambda w: w.phase is Phase.FOLLOWING and w.role == "worker")
    in_sync = [w for w in follow if w.in_sync]
    due = [*state.where(lambda w: w.ready and w.role == "worker" and state.due(w)), *in_sync]
    # Members do not park for some that are level where others are still needed before any step can be made.
    if not due or _filled(state) or (follow and len(state.pool) + len(in_sync) < state.workers_min):
        return False
    starting = state.where(lambda w: w.role == "worker" and w.phase is Phase.STARTING)
    # Every join parks all members: joiners that come together cost one boundary.
    others_soon = starting or len(in_sync) < len(follow)
    return not others_soon or now - due[0].since >= state.rules.join_grace_s


def _filled(state: Membership) -> bool:
    """Whether the members that stay are as many as there may be."""
    return len([m for m in state.members if m.role == "worker" and not m.leaving]) >= state.workers_max


def _form(state: Membership, now: float) -> Decision:
    """Make the next plan when nobody computes any more, or wait for enough workers."""
    if not (_ready_to_start(state, now) if state.plan is None else _all_stand(state, now)):
        return state, ()
    # Only now, when everybody is parked, is the newest step known that a loss is reported with.
    state, out = report_losses(state)
    if state.cancel_by is not None:
        state, more = end(state, End("cancelled"))
        return state, out + more
    if state.pausing and (state.saved or not state.pool):
        state, more = end(state, End("paused"))
        return state, out + more
    start_transaction = newest_transaction(state)
    if start_transaction is None:
        why = f"every worker that held the state of step {state.committed} was lost."
        state, more = end(
            state,
            End(
                "failed",
                "min_workers_lost",
                why,
                "Spread the workers over more nodes, so that one failure cannot take all of them.",
            ),
        )
        return state, out + more
    if not (state.closing or state.pausing) and len(state.pool) < state.workers_min:
        short = now if state.short_since is None else state.short_since
        state, more = _secure(replace(state, short_since=short), start_transaction, now)
        return state, out + more
    state, more = _next_plan(state, start_transaction, now)
    return state, out + more


def _next_plan(state: Membership, start_transaction: int, now: float) -> Decision:
    """Make the plan, unless what broke the last ones would break it too."""
    if state.rules.restarts:
        state, out = spend_failed(state)
        if state.ended:
            return state, out
        state, more = form(state, start_transaction, now)
        return state, out + more
    state = _count_futile(state, now)
    hopeless = state.futile >= state.rules.futile and now - state.futile_since >= state.rules.futile_s
    return _give_up(state, now) if hopeless else form(state, start_transaction, now)


def _secure(state: Membership, start_transaction: int, now: float) -> Decision:
    """Save what a single member holds while too few are left to go on, once."""
    saved = state.resting and not state.broken
    # Before the first transaction a new start makes the same state again.
    nothing = not (state.committed or start_transaction)
    if saved or nothing or not state.rules.secures or not alone(state):
        return state, ()
    return form(state, start_transaction, now)


def _count_futile(state: Membership, now: float) -> Membership:
    """Count exchanges that break again and again although everybody lives: a new plan does not mend that."""
    # A loss explains the break, and the next plan goes on without whoever was lost.
    if not state.broken or state.lost_in == state.generation:
        return replace(state, futile=0)
    return replace(state, futile=state.futile + 1, futile_since=state.futile_since if state.futile else now)


def _give_up(state: Membership, now: float) -> Decision:
    """Let the others try without newcomers that they can do without; where there are none end the attempt."""
    newcomers = [member for member in state.members if expendable(state, member)]
    if not newcomers:
        return end(state, _futile(state))
    state = replace(state, futile=0)
    out: tuple[Instruction, ...] = ()
    for member in newcomers:
        state, more = condemn(state, member.id, "unreachable", now)
        out += more
    return state, out


def _futile(state: Membership) -> End:
    whys = dict.fromkeys(w.why for w in state.members if w.why)
    why = (
        f"the gradient exchange broke {state.futile} times in a row without losing a worker or committing a step: "
        f"{'; '.join(whys) or 'no member reported a cause'}"
    )
    hint = "Check the workers' logs, and whether their nodes can reach each other on all ports."
    return End("failed", "platform_error", f"{why}.", hint)


def _ready_to_start(state: Membership, now: float) -> bool:
    """Whether the first plan can be formed: all that have a place are ready, or enough are and the others had their
    grace."""
    servers = state.where(lambda w: w.ready and w.role == "server")
    ready = state.where(lambda w: w.ready and w.role == "worker")
    if len(servers) < state.rules.servers or len(ready) < state.workers_min:
        return False
    # Workers still waiting for a place are in another phase: nobody waits for those.
    starting = state.where(lambda w: w.phase is Phase.STARTING)
    # The time at which the last one that was needed became ready.
    enough_since = sorted(w.since for w in ready)[state.workers_min - 1]
    return not starting or now - enough_since >= state.rules.grace_s


def _all_stand(state: Membership, now: float) -> bool:
    """Whether nobody computes any more, and no follower is about to reach the boundary of the members."""
    if not state.gathered:
        return False
    ends = state.closing or state.pausing or state.cancel_by is not None
    since = max((m.since for m in state.members), default=now)
    if state.rules.restarts:
        return ends or not awaits_others(state, now)
    # A follower that had been level is waited for, but not for long: all members stand still meanwhile.
    if state.broken or ends or now - since >= state.rules.in_sync_s:
        return True
    return not state.where(lambda w: w.phase is Phase.FOLLOWING and w.in_sync)


def _too_few(state: Membership) -> End:
    """The end where no replacement took part in time: none had a place, or one has yet to run the program's lines."""
    why = f"fewer workers than workers.min ({state.workers_min}) were left for {state.rules.recover_s:.0f} s"
    late = [w.id for w in state.where(lambda w: w.phase in (Phase.STARTING, Phase.FOLLOWING))]
    if not late:
        why, hint = f"{why}, and no replacement could be started.", "`ringleader cluster` shows the nodes."
        return End("failed", "min_workers_lost", why, hint)
    were = "was" if len(late) == 1 else "were"
    why = f"{why}: {', '.join(late)} {were} started but did not catch up with the others."
    hint = "`ringleader logs` shows what they do; a replacement first runs the program's lines between finished loops."
    return End("failed", "min_workers_lost", why, hint)


def _last_holder(state: Membership, worker: WorkerState) -> bool:
    """Whether a part of the state may be lost with this member."""
    if state.rules.servers:
        return worker.role == "server"
    return not any(m.id != worker.id and m.phase is not Phase.CONDEMNED for m in state.members)


def _expire(state: Membership, tick: ev.Tick) -> Decision:
    """Act on deadlines that have passed."""
    now, rules = tick.now, state.rules
    # Before anything below can end the attempt as failed.
    if state.cancel_by is not None and now >= state.cancel_by:
        return end(state, End("cancelled"))
    if state.pausing and now >= (state.pause_by or now):
        return end(state, End("paused" if state.cancel_by is None else "cancelled"))
    state = preempt(state, tick)
    if state.short_since is not None and now - state.short_since > rules.recover_s:
        return end(state, _too_few(state))
    out: tuple[Instruction, ...] = ()
    for worker in state.workers:
        if worker.phase is Phase.CONDEMNED and now - worker.since > rules.kill_s:
            state, more = lose(state, worker.id, worker.cause, now)
            out += more
        elif worker.phase is Phase.ACTIVE and worker.interrupted is not None:
            # From the newest loss on: it may have waited for the one that was lost then.
            waited = now - max(worker.interrupted, state.last_loss)
            # Until that death is certain, an interrupted member may be waiting for the condemned one.
            dying = any(m.phase is Phase.CONDEMNED for m in state.members)
            patience_s = tick.patience_s * (LAST_HOLDER if _last_holder(state, worker) else 1)
            if waited > patience_s and worker.id not in tick.unhurried and not dying:
                state, more = condemn(state, worker.id, "unreachable", now)
                out += more
        if state.ended:
            break
    return state, out
