"""The next acts of a sweep on its trials, decided from their scores and the states of their jobs alone.

With a promotion this is asynchronous successive halving (Li et al., A System for Massively Parallel Hyperparameter
Tuning, 2020): a trial that has reached its rung goes on if it is among the best 1/reduction of those that have, and is
paused otherwise, until others make it one of them. Once nobody can come to a rung any more, one goes on from there
however few they are, so that a sweep ends with a winner.

Where the first trials fail before their first step, and none gets there, the template is taken for wrong: no others
are submitted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringleader.wire.sweeps import SweepState, TrialState

AT_WORK = (TrialState.WORKING, TrialState.STOPPING)
LOST = (TrialState.FAILED, TrialState.CANCELLED)
MOST_SUBMITTED = 16
"""The most trials of one sweep that a round submits, so that the other sweeps and jobs get their turn."""
FIRST_FAILURES = 3
"""As many trials fail before a first step until the others are held back: one or two may have had bad values."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial as of now.

    Attributes:
        rung: the rung that it may run to; the number of rungs stands for the end.
        scores: the metric at the rungs that it has reached, and at its end.
        held: the sweep has paused its job. A job that somebody else has paused keeps its place.
        begun: its job has committed a step.
    """

    number: int
    state: TrialState
    rung: int = 0
    scores: tuple[float, ...] = ()
    held: bool = False
    begun: bool = False

    @property
    def at_work(self) -> bool:
        return self.state in AT_WORK or (self.state is TrialState.PAUSED and not self.held)

    @property
    def arrived(self) -> bool:
        """Whether it has reached its rung."""
        return len(self.scores) > self.rung


@dataclass(frozen=True, slots=True)
class SweepSnapshot:
    """A sweep and all its trials.

    Attributes:
        rungs: how many there are.
        parallel: the most trials at work at once.
    """

    state: SweepState
    trials: Sequence[Trial]
    rungs: int = 0
    reduction: int = 3
    parallel: int = 1
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class SubmitTrial:
    number: int


@dataclass(frozen=True, slots=True)
class PromoteTrial:
    """It may run to the next rung; its job is resumed if it is paused."""

    number: int


@dataclass(frozen=True, slots=True)
class ResumeTrial:
    """Its job goes on to the rung that it was on the way to when the sweep was paused."""

    number: int


@dataclass(frozen=True, slots=True)
class PauseTrial:
    number: int


@dataclass(frozen=True, slots=True)
class CancelTrial:
    number: int


@dataclass(frozen=True, slots=True)
class EndSweep:
    """Nothing is left to run. Without a winner no trial has come to its end with a score."""

    winner: int | None


@dataclass(frozen=True, slots=True)
class CloseSweep:
    """The sweep has ended, and so have all its jobs."""


SweepAct = SubmitTrial | PromoteTrial | ResumeTrial | PauseTrial | CancelTrial | EndSweep | CloseSweep


def decide_sweep(sweep: SweepSnapshot) -> list[SweepAct]:
    """The next acts, in the order in which to carry them out. The same for the same sweep, in whatever order its
    scores came."""
    live = [one for one in sweep.trials if not one.state.ended]
    if sweep.state.ended:
        there = [one for one in live if one.state is not TrialState.WAITING]
        cancels: list[SweepAct] = [
            CancelTrial(one.number) for one in there if one.state is not TrialState.STOPPING or one.held
        ]
        return cancels if there else [CloseSweep()]
    if sweep.state is SweepState.PAUSED:
        return [PauseTrial(one.number) for one in live if one.state is TrialState.WORKING]
    # Before the end is looked for: a promotion may still come of the last score.
    acts = list(_running(sweep, live))
    if fails_from_the_start(sweep):
        acts = [act for act in acts if not isinstance(act, SubmitTrial)]
        live = [one for one in live if one.state is not TrialState.WAITING]
    done = all(one.state is TrialState.PAUSED and one.held and one.arrived for one in live)
    return acts if acts or not done else [EndSweep(winner_of(sweep))]


def fails_from_the_start(sweep: SweepSnapshot) -> bool:
    """Whether several trials have failed before their first step, and no other one has come to it."""
    tried = [one for one in sweep.trials if one.state is not TrialState.WAITING]
    failed = sum(one.state is TrialState.FAILED and not one.begun for one in tried)
    # Of one whose job was deleted nobody knows any more how far it came.
    beyond = any(one.begun or one.state in (TrialState.SUCCEEDED, TrialState.CANCELLED) for one in tried)
    return failed >= FIRST_FAILURES and not beyond


def winner_of(sweep: SweepSnapshot) -> int | None:
    """The trial with the best score among those that have come to their end."""
    ended = [one for one in sweep.trials if one.state is TrialState.SUCCEEDED and one.scores]
    return min(ended, key=lambda one: _rank(sweep, one, -1)).number if ended else None


def leader_of(sweep: SweepSnapshot) -> int | None:
    """The winner so far: the best of those that have come furthest."""
    scored = [one for one in sweep.trials if one.scores and one.state not in LOST]
    return min(scored, key=lambda one: (-len(one.scores), _rank(sweep, one, -1))).number if scored else None


def _running(sweep: SweepSnapshot, live: Sequence[Trial]) -> Iterator[SweepAct]:
    free = sweep.parallel - sum(one.at_work for one in live)
    promoted = set()
    # The highest rung first: what is left of a sweep is worth more the further it has come.
    for one in reversed(_promotable(sweep)):
        if one.state is TrialState.PAUSED and one.held:
            if free <= 0:
                continue
            free -= 1
        # One that is still stopping, or that somebody else has paused, is looked at again once that is over.
        elif one.state is not TrialState.WORKING:
            continue
        promoted.add(one.number)
        yield PromoteTrial(one.number)
    for one in live:
        if one.state is TrialState.WORKING and one.arrived and one.number not in promoted:
            yield PauseTrial(one.number)
        elif one.state is TrialState.PAUSED and one.held and not one.arrived and free > 0:
            free -= 1
            yield ResumeTrial(one.number)
    waiting = [one for one in live if one.state is TrialState.WAITING]
    for one in waiting[: max(0, min(free, MOST_SUBMITTED))]:
        yield SubmitTrial(one.number)


def _promotable(sweep: SweepSnapshot) -> list[Trial]:
    """The trials that have reached their rung and may go on, by rung, the best of each last."""
    found: list[Trial] = []
    # One that has failed takes nobody's place.
    there = [one for one in sweep.trials if one.state not in LOST]
    closed = True
    """Whether nobody can come to the rung any more."""
    for rung in range(sweep.rungs):
        reached = [one for one in there if len(one.scores) > rung]
        closed = closed and not any(
            one.rung == rung and not one.arrived and not one.state.ended for one in there
        )
        most = len(reached) // sweep.reduction
        ranked = sorted(reached, key=lambda one: _rank(sweep, one, rung))
        best = ranked[: max(1, most) if closed else most]
        going = [one for one in best if one.rung == rung and not one.state.ended]
        found += reversed(going)
        closed = closed and not going
    return found


def _rank(sweep: SweepSnapshot, one: Trial, rung: int) -> tuple[float, int]:
    score = one.scores[rung]
    # Equal scores by number, so that the order in which they came decides nothing.
    return (-score if sweep.maximize else score), one.number
