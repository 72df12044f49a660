"""Preemption: room for a waiting gang by surplus first, by eviction last, and no more of either than it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ringleader_api.scheduling.needs import WorkerNeed
from ringleader_api.scheduling.reservations import HeldPlaces
from ringleader_api.scheduling.room import FreeRoom, Spots, Vacated, tail
from ringleader_api.scheduling.shares import Usage
from ringleader_api.scheduling.snapshot import Claim, SchedulerRules


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The jobs that let go, and of how much.

    Attributes:
        going: jobs that were asked before and still hold some of it.
        shrink: jobs asked for surplus, each with the number of workers.
        evict: jobs taken off the cluster, each as soon as it `may_leave`: one that has just begun is waited for.
    """

    going: Sequence[Claim]
    shrink: Sequence[tuple[Claim, int]]
    evict: Sequence[Claim]


def make_room(
    head: Claim,
    admitted: Sequence[Claim],
    held: HeldPlaces,
    free: FreeRoom,
    *,
    level: int,
    usage: Usage,
    rules: SchedulerRules,
) -> PreemptionPlan | None:
    """The plan that gives `head` its room, or None where there is none: then nobody is asked for anything.

    Surplus is asked of jobs of no higher priority than the level that the head waits on, lowest priority and greatest
    share first. Evicted are only jobs that went before it when nobody knew when it can start, and those of a lower
    priority than its own; those that have run for the shortest time first.
    """
    vacated = Vacated(free, head.need, head.gang, head.apart)
    # Asked in an earlier pass already: what they still hold counts as room before anybody else is asked.
    going = [claim for claim in admitted if claim.holds > claim.told]
    for claim in going:
        vacated.release(claim.need, _loose(claim, held, 0, claim.holds - claim.told))
    shrink = _shrink(vacated, _donors(admitted, level, usage), held)
    # An evicted job gives all it holds: its surplus is not asked for as well.
    evict = _evict(vacated, _victims(admitted, head, rules), held, dict(shrink))
    if not vacated.enough:
        return None
    spared = _spared(vacated, [entry for entry in shrink.items() if entry[0] not in evict], held)
    return PreemptionPlan(going, spared, evict)


def may_leave(claim: Claim, rules: SchedulerRules) -> bool:
    """Whether it can be evicted now."""
    return claim.evictable and claim.ran_s >= rules.min_run_s


def ends_at(head: Claim, admitted: Sequence[Claim], held: HeldPlaces, free: FreeRoom) -> float:
    """The seconds from now after which the head fits at the latest; infinite where that depends on jobs without a known
    end."""
    vacated = Vacated(free, head.need, head.gang, head.apart)
    known = [
        (claim.ends_in_s, number, claim)
        for number, claim in enumerate(admitted)
        if claim.ends_in_s is not None
    ]
    # By the first two: claims have no order of their own.
    for ends_in_s, _, claim in sorted(known, key=lambda entry: entry[:2]):
        for need, spots in ((claim.need, held.workers[claim.job_id]), *held.apart(claim)):
            vacated.release(need, spots)
        if vacated.enough:
            return ends_in_s
    return inf


def _donors(admitted: Sequence[Claim], level: int, usage: Usage) -> list[Claim]:
    found = [claim for claim in admitted if claim.surplus and claim.priority <= level]
    # By the id last, here and below: each pass over the same cluster has to choose the same jobs.
    return sorted(found, key=lambda c: (c.priority, -usage.share(c.project), -c.surplus, c.job_id))


def _victims(admitted: Sequence[Claim], head: Claim, rules: SchedulerRules) -> list[Claim]:
    found = [c for c in admitted if _overtook(c, head) or _is_below(c, head, rules)]
    return sorted(found, key=lambda c: (not _overtook(c, head), c.priority, c.ran_s, c.job_id))


def _overtook(claim: Claim, head: Claim) -> bool:
    """Whether the head waited already when the job was let past another head or this one."""
    # A job that has just begun counts, too: else others could go before the head for ever, always one of them just
    # begun.
    return claim.overtook and claim.ran_s <= head.waited_s


def _is_below(claim: Claim, head: Claim, rules: SchedulerRules) -> bool:
    return may_leave(claim, rules) and claim.priority < head.priority


def _shrink(vacated: Vacated, donors: Sequence[Claim], held: HeldPlaces) -> dict[Claim, int]:
    asked: dict[Claim, int] = {}
    for claim in donors:
        for count in range(claim.surplus):
            if vacated.enough:
                return asked
            vacated.release(claim.need, _loose(claim, held, claim.holds - claim.told + count, 1))
            asked[claim] = count + 1
    return asked


def _evict(
    vacated: Vacated, victims: Sequence[Claim], held: HeldPlaces, shrunk: Mapping[Claim, int]
) -> list[Claim]:
    """The jobs whose eviction it takes."""
    gone: list[tuple[Claim, Sequence[tuple[WorkerNeed, Spots]]]] = []
    for claim in victims:
        if vacated.enough:
            break
        given = claim.holds - claim.told + shrunk.get(claim, 0)
        rest = [
            (claim.need, _loose(claim, held, given, claim.holds + claim.alike - given)),
            *held.apart(claim),
        ]
        for need, spots in rest:
            vacated.release(need, spots)
        gone.append((claim, rest))
    if not vacated.enough:
        return []
    # Jobs were added until there was room: through later ones earlier ones may be needless. Backwards: those of the
    # highest priority, or the longest run, were added last and are spared first.
    return [claim for claim, rest in reversed(gone) if not _undone(vacated, rest)]


def _spared(
    vacated: Vacated, shrink: Sequence[tuple[Claim, int]], held: HeldPlaces
) -> list[tuple[Claim, int]]:
    """The surplus that is left to ask for: what turned out not to help stays where it is."""
    asked = []
    for claim, count in reversed(shrink):
        while count and _undone(
            vacated, [(claim.need, _loose(claim, held, claim.holds - claim.told + count - 1, 1))]
        ):
            count -= 1  # noqa: PLW2901 - counts down what is asked of this one
        asked += [(claim, count)] if count else []
    return asked[::-1]


def _undone(vacated: Vacated, parts: Sequence[tuple[WorkerNeed, Spots]]) -> bool:
    """Whether the gang has its room without these workers; if not, they are counted as released again."""
    for need, spots in parts:
        vacated.undo(need, spots)
    if vacated.enough:
        return True
    for need, spots in parts:
        vacated.release(need, spots)
    return False


def _loose(claim: Claim, held: HeldPlaces, skip: int, count: int) -> Spots:
    """The places of the `count` workers that it lets go of after `skip` others; those without a place come first."""
    spots = held.workers[claim.job_id]
    placeless = claim.holds + claim.alike - sum(number for _, number in spots)
    passed = max(0, skip - placeless)
    return tail(spots, passed, max(0, skip + count - placeless) - passed)
