"""The points of a sweep: which values each trial has, from its space and its seed alone."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log, log2
from typing import Any

from ringleader.spec.sweep import Range, SweepSpec

Point = dict[str, Any]
"""The values of a trial, by path in the job file."""
DIGITS = 6
"""The digits that a drawn number keeps: what a job file shows is what a trial was given."""


def points_of(sweep: SweepSpec) -> list[Point] | None:
    """The points of all trials; None where they depend on scores."""
    return _METHODS[sweep.method](sweep) if sweep.method in _METHODS else None


def point_at(space: Mapping[str, Range], place: Sequence[float]) -> Point:
    """The point at this place of the unit cube, one number in [0, 1) for each key."""
    return {path: _value(values, at) for (path, values), at in zip(space.items(), place, strict=True)}


def rounded(value: float, low: float, high: float) -> float:
    """The number in few digits, within its ends."""
    return min(max(float(f"{value:.{DIGITS}g}"), low), high)


def _grid(sweep: SweepSpec) -> list[Point]:
    options = [values.options or [] for values in sweep.space.values()]
    return [dict(zip(sweep.space, chosen, strict=True)) for chosen in product(*options)]


def _random(sweep: SweepSpec) -> list[Point]:
    return [
        point_at(sweep.space, [_unit(sweep.seed, number, path) for path in sweep.space])
        for number in range(sweep.size)
    ]


def _sobol(sweep: SweepSpec) -> list[Point]:
    """Points of a scrambled Sobol' sequence (Sobol', 1967; Owen, 1998)."""
    from scipy.stats import qmc  # loads for a second, which only sweeps of this method are to wait for

    # Unlike points drawn one by one, these leave no part of the space out.
    sequence = qmc.Sobol(len(sweep.space), scramble=True, rng=sweep.seed)
    # Whole powers of two: the sequence is even over these alone.
    places = sequence.random_base2(ceil(log2(sweep.size)))[: sweep.size]
    return [point_at(sweep.space, place.tolist()) for place in places]


_METHODS: Mapping[str, Callable[[SweepSpec], list[Point]]] = {
    "grid": _grid,
    "random": _random,
    "sobol": _sobol,
}


def _unit(seed: int, number: int, path: str) -> float:
    """A number in [0, 1) that depends on these alone: another key or trial changes none of the others."""
    digest = hashlib.sha256(f"{seed}/{number}/{path}".encode()).digest()
    # The factor: the largest of these numbers, as a float, would be 1.
    return int.from_bytes(digest[:8]) / 2**64 * (1 - 2**-53)


def _value(values: Range, at: float) -> Any:
    if values.uniform is not None:
        low, high = values.uniform
        return rounded(low + at * (high - low), low, high)
    if values.log_uniform is not None:
        low, high = values.log_uniform
        return rounded(exp(log(low) + at * (log(high) - log(low))), low, high)
    if values.int is not None:
        first, last = values.int
        return min(first + int(at * (last - first + 1)), last)
    options = values.options or []
    return options[min(int(at * len(options)), len(options) - 1)]


@dataclass(frozen=True, slots=True)
class Told:
    """A trial whose point was drawn, as far as it is known: its newest score, and whether it is over."""

    point: Point
    score: float | None
    ended: bool


def suggested(sweep: SweepSpec, number: int, told: Sequence[Told]) -> Point:
    """The next point by Optuna's tree-structured Parzen estimator, which depends on the points and scores so far.

    Args:
        number: of the trial, which the sampler's random numbers depend on.
    """
    import optuna

    # Each draw makes a study of its own, and would log that it did.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Other random numbers for each trial, as each is drawn by a fresh sampler; numpy's seeds end at 2**32.
    sampler = optuna.samplers.TPESampler(seed=(sweep.seed + number) % 2**32, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction=sweep.metric.goal)
    asked = {path: _distribution(values) for path, values in sweep.space.items()}
    states = optuna.trial.TrialState
    for one in told:
        # A failed trial says nothing; one under way without a score keeps others from its neighbourhood.
        state = states.COMPLETE if one.score is not None else states.FAIL if one.ended else states.RUNNING
        params = {path: _as_asked(sweep.space[path], value) for path, value in one.point.items()}
        study.add_trial(
            optuna.trial.create_trial(state=state, params=params, distributions=asked, value=one.score)
        )
    drawn = study.ask(asked).params
    return {path: _as_given(values, drawn[path]) for path, values in sweep.space.items()}


def _distribution(values: Range) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if values.int is not None:
        return IntDistribution(*values.int)
    if values.options is not None:
        # By place: Optuna's categories are scalars, and ours may be lists.
        return CategoricalDistribution(range(len(values.options)))
    ends = values.uniform or values.log_uniform or []
    return FloatDistribution(*ends, log=values.log_uniform is not None)


def _as_asked(values: Range, value: Any) -> Any:
    return value if values.int is not None or values.options is None else values.options.index(value)


def _as_given(values: Range, drawn: Any) -> Any:
    if values.int is not None:
        return drawn
    if values.options is not None:
        return values.options[drawn]
    low, high = values.uniform or values.log_uniform or [drawn, drawn]
    return rounded(drawn, low, high)
