"""The choice of the schedule that sums a bucket fastest: by trial, else by measured costs of links and adds."""

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from ringleader.comm.schedules import SCHEDULES, RankPart
from ringleader.comm.simulator import ClusterCosts, Forecast, TooLong, simulate

COARSE_PIECES = 8
"""A forecast cuts a bucket into at most this many messages, even where the exchange would cut it into more."""

# Beyond what a trial admits (`NEAR`): a schedule that could be tried is never given up here.
HOPELESS = 4.0

DOUBT = 1.1
"""Forecasts within this factor of the least count as equal. Of those the fewest messages win: each costs time that
the simulator does not know of."""


def choose(part: RankPart, costs: ClusterCosts, *, canonical: bool, element_bytes: int = 4) -> str:
    """The name of the schedule to use: the fastest one of a trial of such sums, else one with about the least
    simulated time; of several the one with the fewest messages, the least time, the first name. All ranks choose
    alike.

    Args:
        part: any rank's part.
        canonical: admit only schedules whose result has the canonical bits for this part.
        element_bytes: the size of one element of the bucket.
    """
    like = alike(part)
    for tried in costs.tried:
        if (tried.part, tried.canonical, tried.element_bytes) == (like, canonical, element_bytes):
            return tried.schedule
    # `tried` plays no part below: outside the cache's key it does not invalidate what was simulated.
    return _choose(like, replace(costs, tried=()), canonical, element_bytes)


def alike(part: RankPart) -> RankPart:
    """The representative of all buckets of about this size, which share an answer: a regroup must not wait for many
    simulations."""
    # Rank 0 for all: every rank asks the same question, so that all get the same answer.
    return replace(part, rank=0, length=1 << max(0, part.length - 1).bit_length())


def forecasts(
    part: RankPart, costs: ClusterCosts, *, canonical: bool, element_bytes: int = 4
) -> dict[str, Forecast]:
    """The simulator's forecasts for the schedules that may be chosen, by name; without those that take `HOPELESS` times
    as long as another."""
    coarse = replace(part, chunk=max(part.chunk, -(-part.length // COARSE_PIECES)))
    admitted = [name for name in sorted(SCHEDULES) if SCHEDULES[name].canonical(part) or not canonical]
    found: dict[str, Forecast] = {}
    # Fewest steps first: quickly simulated, they bound the time after which the others are given up.
    for name in sorted(admitted, key=lambda name: sum(1 for _ in SCHEDULES[name].steps(coarse))):
        # Without a bound for the first one, so that there is always one forecast to choose.
        least = min((forecast.seconds for forecast in found.values()), default=math.inf)
        # Given up rather than played to the end: all messages of many ranks take seconds.
        with suppress(TooLong):
            found[name] = simulate(SCHEDULES[name], coarse, costs, element_bytes, HOPELESS * least)
    return found


# Cached, since a forecast for 16 ranks takes up to 0.1 s and every regroup asks for the same ones.
@lru_cache(maxsize=4096)
def _choose(part: RankPart, costs: ClusterCosts, canonical: bool, element_bytes: int) -> str:
    found = forecasts(part, costs, canonical=canonical, element_bytes=element_bytes)
    least = min(forecast.seconds for forecast in found.values())
    near = [name for name, forecast in found.items() if forecast.seconds <= DOUBT * least]
    return min(near, key=lambda name: (found[name].messages, found[name].seconds, name))
