"""The return of a supervisor that was killed: what it had written down, put right by what it finds.

The state is written down before anything that follows from it is done, so the last instructions may not have been
carried out, and the workers' last messages may not have been heard. Nothing harmful is done twice: a plan that did not
reach somebody is given up for the next one, everything else is said again.
"""

from dataclasses import replace

from ringleader.elastic import events as ev
from ringleader.elastic.facts import condemn, end, lose, park
from ringleader.elastic.instructions import End, Instruction, Interrupt, Kill, Report, Start
from ringleader.elastic.state import Membership, Phase, WorkerState

Decision = tuple[Membership, tuple[Instruction, ...]]

UNREACHED = "the supervisor was lost before the plan of this generation had reached all workers"
STALE = (
    "the supervisor was killed and restarted, but its workers have a later plan than it could save, perhaps because "
    "its disk was full. The next attempt starts from the newest checkpoint."
)


def returned(state: Membership, event: ev.Returned) -> Decision:
    """Take over from the supervisor before this one. A known worker without a finding counts as one that never got a
    process."""
    # Nobody knows what that plan said: who computes, and from which step, cannot be put right.
    if any(f.generation > state.generation for f in event.found):
        return end(state, End("failed", "platform_error", STALE))
    # An announcement may not have reached everybody: it is made again.
    state = replace(state, start=event.start, announced=0)
    out: tuple[Instruction, ...] = (_report(state, event),)
    found = {f.worker: f for f in event.found}
    for worker in state.workers:
        if state.ended:
            return state, out
        if worker.phase is not Phase.FINISHED:
            state, more = _take(
                state, worker, found.get(worker.id, ev.WorkerFound(worker.id, "none")), event.now
            )
            out += more
    for worker in state.workers:
        if worker.phase is Phase.FOLLOWING:  # it may have said that it is level, and says so once
            state = state.put(replace(worker, interrupted=event.now))
            out += (Interrupt(worker.id, state.generation),)
        # The rules then interrupt it once more: the first time may not have been heard.
        elif state.broken and worker in state.members and worker.phase is Phase.ACTIVE:
            state = state.put(replace(worker, interrupted=None))
    return state, out


def _take(state: Membership, worker: WorkerState, found: ev.WorkerFound, now: float) -> Decision:
    coming = worker.phase in (Phase.WAITING, Phase.STARTING)
    match found.process:
        case "none" if coming:
            # The instruction to start it may not have been carried out.
            return state, (Start(worker.id, worker.role),)
        case "none" | "gone":
            return lose(state, worker.id, found.cause, now)
        # Whoever is still starting may be deep in an import, and cannot answer.
        case "silent" if not coming:
            state, out = condemn(state, worker.id, "frozen", now)
            return state, out or (Kill(worker.id, worker.cause),)
        # The kill may not have been carried out, so it is repeated.
        case _ if worker.phase is Phase.CONDEMNED:
            return state, (Kill(worker.id, worker.cause),)
        case _:
            return _hear(state, worker, found, now), ()


def _hear(state: Membership, worker: WorkerState, found: ev.WorkerFound, now: float) -> Membership:
    """Take a living worker's report, where it waits for a plan and that is not known, or has missed the current one."""
    if worker.phase is Phase.WAITING:
        state = state.put(replace(worker, phase=Phase.STARTING, since=now))
    parked = found.parked
    if parked is None:
        return state
    report = parked.report
    if worker.phase is Phase.ACTIVE and report.generation < worker.generation:
        # As if it had taken the plan and not met the others. Who never was a member has nothing that counts.
        new = not report.generation and state.plan is not None and state.plan.start_transaction > 0
        missed = replace(report, generation=worker.generation, step=-1 if new else report.step, why=UNREACHED)
        parked = replace(parked, now=now, report=missed)
    return park(state, parked)


def _report(state: Membership, event: ev.Returned) -> Report:
    gone = [f.worker for f in event.found if f.process == "gone" and state.find(f.worker)]
    return Report("supervisor.returned", state.generation, {"start": event.start, "gone": gone})
