"""The state of the membership machine, all that is known about an attempt's workers, and the questions it answers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from ringleader.elastic.instructions import End, Role
from ringleader.elastic.parts import parts_of, slots_of
from ringleader.elastic.plan import Plan

GIVES_BACK = 10
"""The number of committed steps that give one failure back: none is committed while newcomers that are needed keep
dying."""
PAUSE = "pause"
"""The cause of a plan whose members save what they hold and park again."""
SHORT = "short"
"""The cause of a plan whose members do the same because they are too few to go on, until there are enough."""


class Phase(StrEnum):
    """The phases of a worker."""

    WAITING = "waiting"
    STARTING = "starting"
    PARKED = "parked"
    # Shown to clients as the worker's state, so that it keeps the word it had at first.
    FOLLOWING = "shadowing"
    ACTIVE = "active"
    CONDEMNED = "condemned"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class AttemptRules:
    """The rules of an attempt, which stay the same. Times in seconds.

    Attributes:
        shards: the number of logical shards; also the most workers that can take part.
        servers: parameter servers beside the workers.
        copies: whether each server holds the whole state, so that a lost one is replaced as long as another lives.
        backups: the number of other servers that hold each server's part of the state, see `parts`; not with `copies`.
        joiners_follow: a joiner asks a member which calls of the program are over, runs their lines, follows the member
            where it can, and joins then; else all wait while it heals and runs them.
        own_step_counts: each member counts the steps it has seen settled, so that a server may be behind a worker.
        restarts: the program starts anew on all members in every generation and keeps its state itself, see `restarts`:
            members hold none, and commit no steps.
        secures: what a single member is left with is saved at once where the group cannot go on without others.
        max_failures: the number of workers that may die before they ever committed a step, while the group needs them;
            one less counts for each `GIVES_BACK` steps that are committed since. With `restarts` a program that fails
            by itself counts too.
        grace_s: the time for which enough workers wait for those still starting before the first plan.
        join_grace_s: the time for which a ready joiner waits for others, to join with them.
        kill_s: the time after which a killed worker counts as lost without a notice.
        recover_s: the time for which too few workers may wait for replacements.
        in_sync_s: the time for which parked members wait for followers that had been level to be so at the boundary.
        save_s: the least time before a machine goes away at which all stop to save what they hold, where too few would
            be left: a third of the shortest notice there is, see `runtime.nodes.notices`.
        setback_s, setback_most_s: the time for which nobody is started after the loss of a newcomer that the group can
            do without, doubled each time, and its upper bound.
        follow_tries: the number of times that a joiner tries to follow before it is healed while all wait.
        futile, futile_s: the number of plans in a row, and their time, whose exchange broke although nobody was lost,
            without a committed step: after that the cause will not go away by itself.
    """

    attempt: int
    shards: int
    servers: int = 0
    copies: bool = False
    backups: int = 0
    joiners_follow: bool = False
    own_step_counts: bool = False
    restarts: bool = False
    secures: bool = False
    max_failures: int = 3
    grace_s: float = 5.0
    join_grace_s: float = 2.0
    kill_s: float = 10.0
    recover_s: float = 900.0
    in_sync_s: float = 1.0
    follow_tries: int = 2
    save_s: float = 10.0
    futile: int = 5
    futile_s: float = 120.0
    setback_s: float = 1.0
    setback_most_s: float = 300.0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker or server.

    Attributes:
        since: the time at which it entered its phase.
        generation: the last plan it was a member of; 0 before its first.
        applied, step, phases: transactions, global steps, and phases of the next step that it had applied when it last
            parked.
        why: the broken exchange's sentence, empty at a planned boundary.
        interrupted: the time at which it was interrupted in its generation, if it was.
        notice, deadline: the source of the notice that its machine goes away, and the time at which it does.
        leaving: why it has to leave (resize, drain, slow), or empty.
        proven: whether it was a member of a generation that committed a step.
        cause: why it is condemned.
        differs: what of its program may have made its final weights differ from the others'.
        slot: of a server: the number of the part of the state that is its own.
        in_sync: it follows and has all that its donor has; or it is parked and has the state of `applied`.
        caught_up: its program has reached the call of a member that it cannot follow: it is healed while all wait.
        call: the session call that its program had reached when it last parked before its first plan.
        times_followed: the number of times it has begun to follow since a generation broke, without those in which it
            was only told of lines to run.
        pair: the number of its current or last pair, and `donor` the member that it follows there.
    """

    id: str
    role: Role
    phase: Phase
    since: float
    generation: int = 0
    applied: int = 0
    step: int = 0
    why: str = ""
    interrupted: float | None = None
    leaving: str = ""
    notice: str = ""
    deadline: float | None = None
    proven: bool = False
    cause: str = ""
    digest: str = ""
    differs: str = ""
    slot: int = 0
    in_sync: bool = False
    caught_up: bool = False
    call: int = 0
    times_followed: int = 0
    pair: int = 0
    donor: str = ""
    phases: int = 0

    @property
    def stands(self) -> tuple[int, int]:
        """The global steps that it has applied, and phases of the next one."""
        return self.step, self.phases

    @property
    def ready(self) -> bool:
        """Whether it has started, was never a member, and waits to join."""
        return self.phase is Phase.PARKED and self.generation == 0


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that is gone; `rank` is None if it was no member. `why`: its own words, where it had any."""

    worker: str
    rank: int | None
    cause: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Setback:
    """Losses of newcomers that the group does without: `count` since one committed a step. No other of that role is
    started before `until`, see `newcomers`."""

    role: Role
    count: int = 0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """The marks of one recovery, from the first sign of a loss to the next committed step, in seconds of the
    supervisor's clock; None where it has not got so far.

    Attributes:
        sign: the first sign: a broken exchange, a death notice, or the last heartbeat of one that is frozen.
        known: who was lost is certain.
        formed: the plan was made.
        seated: its last member was connected.
        healed: its last member had the newest state.
    """

    sign: float
    known: float | None = None
    formed: float | None = None
    seated: float | None = None
    healed: float | None = None

    def again(self, now: float) -> "Recovery":
        """The same recovery, going on after something else broke before a step was committed."""
        return Recovery(sign=self.sign, known=now)

    def mark(self, name: str, now: float) -> "Recovery":
        return replace(self, **{name: now})

    def phases(self, now: float) -> dict[str, float]:
        """The times of a `recovered` event, with the first step committed at `now`."""
        marks = [self.sign]
        for mark in (self.known, self.formed, self.seated, self.healed, now):
            # Never backwards: a phase that was skipped took no time, and the sum stays the total.
            marks.append(max(marks[-1], mark if mark is not None else marks[-1]))
        names = ("detect_s", "decide_s", "regroup_s", "heal_s", "redo_s")
        spans = {n: round(b - a, 6) for n, a, b in zip(names, marks, marks[1:], strict=False)}
        return {**spans, "total_s": round(marks[-1] - marks[0], 6)}


@dataclass(frozen=True, slots=True)
class Membership:
    """The whole state of an attempt's membership.

    Attributes:
        workers_min, workers_max: the number of workers that the job is to have.
        start: the number of starts of the supervisor; with `generation` it names a membership once and for all.
        workers: those known, in the order they were started.
        named: the number of workers that were ever named.
        generation: the last one issued; `plan` is its plan.
        announced: the generation that was announced and not formed yet, or 0.
        broken: the exchange of the current plan ended without a boundary.
        last_loss: the time at which a member was last lost, and `lost_in` its generation.
        futile, futile_since: the number of plans in a row that had to be made because an exchange broke and nobody was
            lost, without a step between them; the time at which that began.
        losses: lost workers that are not reported yet: the step is known once everybody is parked.
        short_since: the time since which fewer than `workers_min` workers could commit.
        formed_step: the global step at which the current plan was formed.
        committed: the newest global step that any member is known to have applied.
        failures: the number of workers that died before they ever committed, while the group needed them, and
            `failed_at` the step of the last one's death: see `spent`.
        setbacks: at most one for each role.
        raised: the places (step, slice) where the training function raised so far.
        resized: a resize has not led to a plan yet.
        cancel_by: the latest end of a cancelled attempt, which ends at the next boundary.
        pairs_made: the number of pairs that were ever made.
        pause_by: the latest end of a paused attempt, which ends once the members have saved what they hold at the next
            boundary.
        preempted: the reason, where it was not users who paused it: it is to go on elsewhere.
    """

    rules: AttemptRules
    workers_min: int
    workers_max: int
    start: int = 1
    workers: tuple[WorkerState, ...] = ()
    named: int = 0
    generation: int = 0
    plan: Plan | None = None
    announced: int = 0
    broken: bool = False
    last_loss: float = 0.0
    lost_in: int = 0
    futile: int = 0
    futile_since: float = 0.0
    losses: tuple[Loss, ...] = ()
    short_since: float | None = None
    formed_step: int = 0
    committed: int = 0
    failures: int = 0
    failed_at: int = 0
    setbacks: tuple[Setback, ...] = ()
    raised: frozenset[tuple[int, int]] = frozenset()
    resized: bool = False
    cancel_by: float | None = None
    pause_by: float | None = None
    preempted: str = ""
    pairs_made: int = 0
    recovery: Recovery | None = None
    ended: End | None = None

    @property
    def spent(self) -> int:
        """The failures that count: a group that trains shows that the program does not end its workers."""
        return max(0, self.failures - (self.committed - self.failed_at) // GIVES_BACK)

    def find(self, worker: str) -> WorkerState | None:
        return next((w for w in self.workers if w.id == worker), None)

    def where(self, wanted: Callable[[WorkerState], bool]) -> tuple[WorkerState, ...]:
        return tuple(w for w in self.workers if wanted(w))

    @property
    def members(self) -> tuple[WorkerState, ...]:
        """The members of the current plan that are still known, in rank order."""
        if self.plan is None:
            return ()
        known = {w.id: w for w in self.workers if w.generation == self.generation}
        return tuple(known[m] for m in self.plan.members if m in known)

    def copied(self, server: WorkerState) -> bool:
        """Whether all that this server holds is held by another one too, so that the group survives its loss."""
        rules = self.rules
        if not (rules.copies or rules.backups):
            return False
        # One that was never a member holds nothing yet.
        others = self.where(lambda w: w.role == "server" and w.id != server.id and w.generation > 0)
        # A condemned server counts as gone here: what only it holds is held by nobody.
        slots = {w.slot for w in others if w.phase is not Phase.CONDEMNED}
        if self.plan is None or server.generation == 0:
            return True  # it holds nothing yet
        if rules.copies:
            return bool(slots)
        own = parts_of(server.slot, rules.servers, rules.backups)
        return all(slots.intersection(slots_of(part, rules.servers, rules.backups)) for part in own)

    @property
    def closing(self) -> bool:
        """Whether somebody passed the final barrier: nobody needs to be replaced any more."""
        return any(w.phase is Phase.FINISHED for w in self.workers)

    @property
    def pausing(self) -> bool:
        """Whether the next boundary is saved, and nothing comes after it."""
        return self.pause_by is not None and not self.closing

    @property
    def saved(self) -> bool:
        """Whether the current plan was made for saving, and nobody was lost in it."""
        return self.plan is not None and self.plan.cause == PAUSE and not self.broken

    @property
    def resting(self) -> bool:
        """Whether the current plan was made for saving, because too few were left to go on."""
        return self.plan is not None and self.plan.cause == SHORT

    @property
    def trained(self) -> bool:
        """Whether every worker passed the final barrier."""
        workers = [m for m in self.members if m.role == "worker"]
        return self.closing and all(m.phase is Phase.FINISHED for m in workers)

    @property
    def gathered(self) -> bool:
        """Whether no member computes any more: all are parked, finished or gone for certain."""
        return all(w.phase in (Phase.PARKED, Phase.FINISHED) for w in self.members)

    @property
    def pool(self) -> tuple[WorkerState, ...]:
        """The workers (not servers) that could be in the next plan: members, also those about to leave, then those
        ready to join."""
        stay = tuple(w for w in self.members if w.phase in (Phase.PARKED, Phase.ACTIVE))
        return tuple(w for w in (*stay, *self.where(lambda w: w.ready)) if w.role == "worker")

    def due(self, worker: WorkerState) -> bool:
        """Whether a ready worker joins at the next boundary: it has the state, or must be given it while all wait."""
        asks = self.rules.joiners_follow and self.plan is not None
        # A generation that broke says nothing about those that follow its members.
        asks = asks and (self.broken or worker.times_followed < self.rules.follow_tries)
        return worker.role == "server" or worker.in_sync or worker.caught_up or not asks

    @property
    def status(self) -> str:
        """The state as `wire.states.State` names it: starting, running or recovering."""
        if self.plan is None:
            return "starting"
        return "recovering" if self.short else "running"

    @property
    def short(self) -> bool:
        """Whether fewer than `workers_min` workers could commit a step."""
        return self.plan is not None and not self.closing and len(self.pool) < self.workers_min

    def put(self, worker: WorkerState) -> "Membership":
        return replace(self, workers=tuple(worker if w.id == worker.id else w for w in self.workers))

    def drop(self, worker: str) -> "Membership":
        return replace(self, workers=tuple(w for w in self.workers if w.id != worker))
