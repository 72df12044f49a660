"""The surplus, left once nobody waits for room: given out in turns, and now and then moved from the job with the
most."""

import heapq
from collections.abc import Sequence

from ringleader_api.scheduling.reservations import HeldPlaces, Reservations
from ringleader_api.scheduling.room import FreeRoom, Vacated, tail
from ringleader_api.scheduling.shares import Usage
from ringleader_api.scheduling.snapshot import Claim, SchedulerRules

_Wish = tuple[int, int, Claim, int, int]
"""(workers it has, its number, the job, workers it wants besides, its portion)."""

TURNS = 16
"""The most portions in which a job gets its surplus, in turn with the others: a pass stays short."""


def give_out(
    admitted: Sequence[Claim],
    fresh: Sequence[Claim],
    free: FreeRoom,
    *,
    usage: Usage,
    reservations: Reservations,
    rules: SchedulerRules,
) -> dict[str, int]:
    """The workers that each growing job may have from now on, by id.

    `fresh` are those that start now with their floor. Priority comes first, then the project with the smallest share,
    then the job with the fewest workers. Those that still let go, or have changed a moment ago, are passed over.
    """
    wishes = [
        (c, c.told, c.headroom) for c in admitted if c.holds == c.told and c.settled_s >= rules.settle_s
    ]
    wishes += [(c, c.floor, c.holds - c.floor) for c in fresh if c.elastic]
    lines: dict[tuple[int, str], list[_Wish]] = {}
    for number, (claim, has, wants) in enumerate(wishes):
        if wants > 0:
            # The number is unique, so that the heap never compares two claims.
            wish = (has, number, claim, wants, max(1, wants // TURNS))
            lines.setdefault((-claim.priority, claim.project), []).append(wish)
    for line in lines.values():
        heapq.heapify(line)
    turns = [(lowered, usage.share(project), project) for lowered, project in lines]
    heapq.heapify(turns)
    granted: dict[str, int] = {}
    while turns:
        lowered, share, project = heapq.heappop(turns)
        line = lines[lowered, project]
        # Its share grew since it was queued here: it goes back in line with the present one.
        if (now := usage.share(project)) == share:
            granted |= _serve(heapq.heappop(line), line, free, usage, reservations)
            now = usage.share(project)
        if line:
            heapq.heappush(turns, (lowered, now, project))
    return granted


def _serve(
    wish: _Wish, line: list[_Wish], free: FreeRoom, usage: Usage, reservations: Reservations
) -> dict[str, int]:
    """Give out one portion, as far as there is room and quota; a job that gets less than it asked for has no further
    turn."""
    has, number, claim, wants, portion = wish
    asked = min(portion, wants, max(0, usage.quota_left(claim.project, claim.need)))
    sure = reservations.most(claim.need, asked)
    got = sum(count for _, count in free.take(claim.need, sure) or [])
    if not got:
        return {}
    reservations.add(claim.need, got)
    usage.add(claim, got)
    if wants > got == asked:
        heapq.heappush(line, (has + got, number, claim, wants - got, portion))
    return {claim.job_id: has + got}


def level_out(
    admitted: Sequence[Claim], held: HeldPlaces, free: FreeRoom, usage: Usage, rules: SchedulerRules
) -> tuple[str, int] | None:
    """The job that gives surplus back although nobody waits, as (id, what it may have from now on); None: nobody.

    One job a pass, to one project, and only as much as leaves the giver's share no smaller than the taker's: what has
    been moved is never moved back.
    """
    # Not while somebody still lets go: the shares are about to change.
    if any(claim.holds != claim.told for claim in admitted):
        return None
    settled = [claim for claim in admitted if claim.settled_s >= rules.settle_s]
    takers = [c for c in settled if c.headroom and usage.quota_left(c.project, c.need) > 0]
    givers = [c for c in settled if c.surplus]
    if not takers or not givers:
        return None
    # By the id last, so that equals are chosen alike in every pass.
    taker = min(takers, key=lambda c: (usage.share(c.project), -c.priority, c.told, c.job_id))
    giver = max(givers, key=lambda c: (usage.share(c.project), -c.priority, c.told, c.job_id))
    if giver.priority > taker.priority or giver.project == taker.project:
        return None
    apart = usage.share(giver.project) - usage.share(taker.project)
    each = usage.unit(giver) + usage.unit(taker)
    # Each worker moved lowers one share and raises the other: more would only be moved back.
    count = min(giver.surplus, taker.headroom, int(apart / each) if each else 0)
    if count < 1:
        return None
    # Only if it helps: what is given back may lie on nodes where the taker's workers do not fit.
    vacated = Vacated(free, taker.need, 1)
    vacated.release(giver.need, tail(held.workers[giver.job_id], 0, count))
    return (giver.job_id, giver.told - count) if vacated.enough else None


def within_quota(admitted: Sequence[Claim], usage: Usage) -> dict[str, int]:
    """The jobs that have to give back surplus above their project's quota, the newest first: what each may have, by id.

    `usage` is what jobs are told they may have, whatever they still hold; it changes with what is taken here.
    """
    granted: dict[str, int] = {}
    # The newest first: jobs that have trained for long keep their size.
    for claim in reversed(admitted):
        count = min(-usage.quota_left(claim.project, claim.need), claim.surplus)
        if count > 0:
            granted[claim.job_id] = claim.told - count
            usage.add(claim, -count)
    return granted
