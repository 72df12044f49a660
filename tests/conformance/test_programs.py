"""Ordinary programs end with the bits of one undisturbed process, whatever happens to their members.

Every day each program meets one of the moments in each mode. `make chaos` plays a quarter of the table, an hour on two
cores; PROGRAMS_QUARTER (0 to 3) says which.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from cast import Cast
from faults import ANY, FaultPlan
from play import Play
from programs import BATCH, BY_HAND, PROGRAMS, RATES, SHARDS, UNSETTLED

from ringleader.spec import JobSpec
from ringleader.train.local import run_local
from ringleader.train.run import WorkerResult

MODES: dict[str, dict[str, Any]] = {
    "ring": {"intra_node": "ring", "inter_node": "ring"},
    "servers": {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2},
    "local_sgd": {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2},
    "copies": {"intra_node": "parameter_server", "inter_node": "ring", "servers": 2},
    "leased": {"intra_node": "parameter_server", "inter_node": "parameter_server", "consistency": "ssp"},
}
DAILY = ("ring", "servers", "local_sgd")
SAVED_EVERY = 3


def job(mode: str, *, least: int, most: int, saved_every: int | None = SAVED_EVERY) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "programs",
            "entrypoint": "programs:train",
            "workers": {"min": least, "max": most},
            "batch": {"global_size": BATCH, "logical_shards": SHARDS},
            "checkpoint": {"every_steps": saved_every},
            "sync": MODES[mode],
        }
    )


@cache
def undisturbed(name: str, mode: str) -> WorkerResult:
    """One process that nothing happens to."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        finished, _ = run_local(job(mode, least=1, most=3, saved_every=None), PROGRAMS[name], Path(place))
    return finished


def worker(mode: str, number: int) -> str:
    servers = MODES[mode].get("servers", 1) if "parameter_server" in MODES[mode].values() else 0
    return f"w{number + servers}"


@dataclass(frozen=True)
class Moment:
    """What happens to a program in a mode, and whose seat proves that it did.

    Attributes:
        comes: the number of the newcomer who has to be a member before the program's end, to whom the lines that were
            over came late; None: whoever comes, comes in time or does not.
        until: the moment is there in every program that has more steps than this; None: not in every program.
    """

    play: Callable[[str, str, Path], Play]
    comes: int | None = None
    until: int | None = None


NEVER = 1000
"""A generation that nobody hears of."""
STEPS_TO_FOLLOW = 6
"""Who comes late asks, runs lines, asks again, is given a copy, and follows for a step or two."""


def played(
    name: str, spec: JobSpec, faults: FaultPlan, place: Path, *, attempt: int = 1, shadows: bool = False
) -> Play:
    saved, train = str(place / "saved"), PROGRAMS[name]
    cast = Cast(spec, train, faults, artifacts=place, checkpoints=saved, attempt=attempt, shadows=shadows)
    return cast.play()


def kill(step: int, phase: str = "forward") -> Moment:
    """One of three dies there, and the first one waits for who comes for it."""

    def play(name: str, mode: str, place: Path) -> Play:
        faults = dies(mode, step, phase)
        return played(name, job(mode, least=2, most=3), waits(faults, mode, comes=3), place)

    return Moment(play, comes=3, until=step if phase == "forward" else None)


def dies(mode: str, step: int, phase: str = "forward") -> FaultPlan:
    """The second worker does, at an odd step of local SGD within the round that the step is in; where it has nothing to
    do at that step, at the next one."""
    past = step % 2 if mode == "local_sgd" and phase == "forward" else 0
    return FaultPlan().kill(
        worker(mode, 1), at_step=step - past, phase=phase, past=past, later=phase == "forward"
    )


def waits(faults: FaultPlan, mode: str, *, comes: int, by: int = 0) -> FaultPlan:
    """A survivor stays where it is in the generation behind a loss until the newcomer's begins."""
    return faults.linger(worker(mode, by), since_generation=2, for_generation=3, joined=worker(mode, comes))


def nobody(step: int) -> Moment:
    """One of three dies there, and nobody comes in time: two end the program."""

    def play(name: str, mode: str, place: Path) -> Play:
        faults = dies(mode, step).hold(worker(mode, 3), at_step=ANY, phase="parked", for_generation=NEVER)
        return played(name, job(mode, least=2, most=3), faults, place)

    return Moment(play)


def follow(step: int) -> Moment:
    """One of three dies there, and who comes for it follows a member while the others go on (in a ring)."""

    def play(name: str, mode: str, place: Path) -> Play:
        first = worker(mode, 0)
        faults = dies(mode, step).linger(first, since_generation=2, for_generation=3, asked=True)
        faults = faults.dawdle(first, since_generation=2, for_generation=3, longer=2.0)
        return played(name, job(mode, least=2, most=3), faults, place, shadows=True)

    return Moment(play, comes=3, until=step + STEPS_TO_FOLLOW)


def join(step: int) -> Moment:
    """A third worker comes there; the first one waits until its generation begins."""

    def play(name: str, mode: str, place: Path) -> Play:
        faults = FaultPlan().resize(at_step=step, minimum=2, maximum=3)
        faults = faults.linger(worker(mode, 0), since_step=step, for_generation=2)
        return played(name, job(mode, least=1, most=2), faults, place)

    return Moment(play, comes=2, until=step)


def shrink(step: int) -> Moment:
    """A worker is let go there, and one goes on alone."""

    def play(name: str, mode: str, place: Path) -> Play:
        faults = FaultPlan().resize(at_step=step, minimum=1, maximum=1)
        return played(name, job(mode, least=2, most=2), faults, place)

    return Moment(play)


def drain(step: int) -> Moment:
    """The machine of one of two goes away there; the other one waits for who comes for it."""

    def play(name: str, mode: str, place: Path) -> Play:
        faults = FaultPlan().drain(worker(mode, 0), at_step=step)
        faults = faults.linger(worker(mode, 1), since_step=step, for_generation=2)
        return played(name, job(mode, least=1, most=2), waits(faults, mode, by=1, comes=2), place)

    return Moment(play, comes=2, until=step)


def preempt(step: int) -> Moment:
    """A machine goes away there without which too few are left: the attempt ends and another one goes on."""

    def play(name: str, mode: str, place: Path) -> Play:
        faults = FaultPlan().drain(worker(mode, 0), at_step=step)
        first = played(name, job(mode, least=2, most=2), faults, place)
        assert first.outcome in ("preempted", "succeeded"), (first.reason, first.message)
        return again(first, name, mode, place)

    return Moment(play)


def evict(step: int) -> Moment:
    """One of three freezes there, and is killed for it; the first one waits for who comes for it."""

    def play(name: str, mode: str, place: Path) -> Play:
        frozen = worker(mode, 1)
        faults = FaultPlan().linger(frozen, since_step=step, for_generation=NEVER).evict(frozen, at_step=step)
        return played(name, job(mode, least=2, most=3), waits(faults, mode, comes=3), place)

    return Moment(play, comes=3, until=step)


def again(first: Play, name: str, mode: str, place: Path) -> Play:
    """The next attempt, at another world size; a play that ended before anything happened is the last one."""
    if first.outcome == "succeeded":
        return first
    return played(name, job(mode, least=3, most=3), FaultPlan(), place, attempt=2)


def pause(step: int) -> Moment:
    def play(name: str, mode: str, place: Path) -> Play:
        first = played(name, job(mode, least=2, most=2), FaultPlan().pause(at_step=step), place)
        assert first.outcome in ("paused", "succeeded"), (first.reason, first.message)
        return again(first, name, mode, place)

    return Moment(play)


def restart(step: int) -> Moment:
    """Everybody dies there, once a checkpoint is written."""

    def play(name: str, mode: str, place: Path) -> Play:
        faults, saved = FaultPlan(), place / "saved"
        for member in ("s0", "s1", *(worker(mode, number) for number in range(4))):
            faults = faults.kill(member, at_step=step, once=saved)
        first = played(name, job(mode, least=2, most=2), faults, place)
        return again(first, name, mode, place)

    return Moment(play)


MOMENTS: dict[str, Moment] = {
    **{f"kill-{step}": kill(step) for step in (1, 4, 5, 9, 12, 14)},
    **{f"kill-{step}-{phase}": kill(step, phase) for step in (4, 8) for phase in ("between", "evaluate")},
    **{f"nobody-comes-{step}": nobody(step) for step in (9, 14)},
    **{f"follow-{step}": follow(step) for step in (3, 6)},
    **{f"join-{step}": join(step) for step in (6, 10)},
    **{f"pause-{step}": pause(step) for step in (1, 4, 6, 8, 12, 15)},
    **{f"restart-{step}": restart(step) for step in (6, 12)},
    **{f"shrink-{step}": shrink(step) for step in (5, 11)},
    **{f"drain-{step}": drain(step) for step in (4, 8)},
    **{f"preempt-{step}": preempt(step) for step in (6, 13)},
    **{f"evict-{step}": evict(step) for step in (7, 12)},
}
REFUSED: dict[
    str, set[str]
] = {  # in words: tests/unit/test_late_registration.py, test_body_settings.py and others
    "servers": BY_HAND,
    "copies": BY_HAND,
    "leased": UNSETTLED | RATES | BY_HAND,
}
TABLE = [(name, mode) for name, mode in product(PROGRAMS, MODES) if name not in REFUSED.get(mode, ())]
COMMONEST = [
    "schedule_by_hand",
    "cosine_by_hand",
    "plateau",
    "rate_divided_on_a_plateau",
    "best_weights_in_a_variable",
    "average_by_hand",
    "reset_layer",
    "kept_schedule",
    "added_group",
    "optimizer_made_anew",
    "unfreezing",
]
"""Who comes late to these runs lines that have already changed what training goes on with."""
EVERY_DAY = [
    (name, mode, list(MOMENTS)[number % len(MOMENTS)])
    for number, (name, mode) in enumerate(pair for pair in TABLE if pair[1] in DAILY)
]


@pytest.mark.parametrize(("name", "mode", "moment"), EVERY_DAY)
def test_a_program_keeps_its_bits(name: str, mode: str, moment: str, tmp_path: Path) -> None:
    keeps_its_bits(name, mode, moment, tmp_path)


@pytest.mark.parametrize("moment", ["kill-9", "pause-12"])
@pytest.mark.parametrize("mode", ["ring", "servers"])
@pytest.mark.parametrize("name", COMMONEST)
def test_the_commonest_lines_between_loops_keep_their_bits(
    name: str, mode: str, moment: str, tmp_path: Path
) -> None:
    keeps_its_bits(name, mode, moment, tmp_path)


@pytest.mark.parametrize("name", ["stopped_by_an_exception", "step_of_an_optimizer_of_its_own"])
def test_lines_between_loops_count_where_items_are_leased(name: str, tmp_path: Path) -> None:
    """A loop left by an exception is left on the server; buffers that lines between loops change stay changed."""
    keeps_its_bits(name, "leased", "kill-4", tmp_path)


def test_each_of_two_servers_resumes_with_its_part_of_what_the_program_kept(tmp_path: Path) -> None:
    """Lines between loops read the momentum, of which each server has a part, and run again behind a pause."""
    keeps_its_bits("optimizer_state_kept_and_put_back", "servers", "pause-12", tmp_path)


QUARTER = [
    (*pair, moment)
    for number, (pair, moment) in enumerate(product(TABLE, MOMENTS))
    if (number + number // len(MOMENTS)) % 4 == int(os.environ.get("PROGRAMS_QUARTER", "0"))
]


@pytest.mark.chaos
@pytest.mark.parametrize(("name", "mode", "moment"), QUARTER)
def test_a_program_keeps_its_bits_at_every_moment(name: str, mode: str, moment: str, tmp_path: Path) -> None:
    keeps_its_bits(name, mode, moment, tmp_path)


def keeps_its_bits(name: str, mode: str, moment: str, place: Path) -> None:
    what, alone = MOMENTS[moment], undisturbed(name, mode)
    play = what.play(name, mode, place)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {finished.reproducible_why for finished in play.finished.values()} == {""}
    assert play.digest == alone.digest
    assert play.reported("member.differed") == []
    later = {member for plan in play.plans[1:] for member in plan.members}
    came = what.comes is not None and worker(mode, what.comes) in later
    assert came or not due(what, mode, alone.steps, play), play.worlds


def due(moment: Moment, mode: str, steps: int, play: Play) -> bool:
    """Whether the moment's newcomer had to come. Who leases items does not pass through every step, and in a round
    of local SGD two are one."""
    if moment.comes is None:
        return False
    if mode == "leased":  # the loss may come when nothing is left to do
        in_time = moment.until is None or moment.until < steps
        return in_time and len(play.plans) > 1 and play.plans[1].start_step < steps
    if moment.until is None:
        return len(play.plans) > 1
    return moment.until + (mode == "local_sgd") < steps
