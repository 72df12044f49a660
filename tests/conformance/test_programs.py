"""Ordinary programs end with the bits of one undisturbed process, whatever happens to their members.

Every day each program meets one of the moments in each mode. `make chaos` plays a quarter of the table, an hour on two
cores; PROGRAMS_QUARTER (0 to 3) says which. With PROGRAMS_GPUS=1 all members compute on the machine's CUDA device.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
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
from programs import BATCH, BY_HAND, RATES, SHARDS, STEPS, UNSETTLED
from programs_by_phases import BY_PHASES
from programs_by_steps import BY_STEPS, SET_IN_A_BODY
from programs_made_anew import ALL, MADE_ANEW
from programs_of_strangers import PHASED, RATED
from programs_of_studies import CHANGED_AT_THE_END
from programs_on_gpu import ON_GPU

from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, SingleMember, alone
from ringleader.train.run import WorkerResult, run

MODES: dict[str, dict[str, Any]] = {
    "ring": {"intra_node": "ring", "inter_node": "ring"},
    "servers": {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2},
    "local_sgd": {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2},
    "copies": {"intra_node": "parameter_server", "inter_node": "ring", "servers": 2},
    "leased": {"intra_node": "parameter_server", "inter_node": "parameter_server", "consistency": "ssp"},
}
DAILY = ("ring", "servers", "local_sgd")
GPUS = int(os.environ.get("PROGRAMS_GPUS", "0"))
SAVED_EVERY = 3


def job(mode: str, *, least: int, most: int, saved_every: int | None = SAVED_EVERY) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "programs",
            "entrypoint": "programs:train",
            "workers": {"min": least, "max": most, "gpus": GPUS},
            **({"servers": {"gpus": GPUS}} if "parameter_server" in MODES[mode].values() else {}),
            "batch": {"global_size": BATCH, "logical_shards": SHARDS},
            "checkpoint": {"every_steps": saved_every},
            "sync": MODES[mode],
        }
    )


@dataclass(slots=True)
class RecordedPhases(RecordedOutput):
    """What one process lets out, with the phases that it passed through.

    Attributes:
        passed: how often it was in each phase, by phase and committed steps.
        calls: session calls that it finished.
    """

    passed: Counter[tuple[str, int]] = field(default_factory=Counter)
    calls: int = 0

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        self.passed[phase, step] += 1

    def between(self, call: int) -> None:
        self.calls = max(call, self.calls)


def alone_with_phases(name: str, mode: str) -> tuple[WorkerResult, RecordedPhases]:
    """One process that nothing happens to, and what it passed through."""
    return _alone_with_phases(name, alone(job(mode, least=1, most=3, saved_every=None)).model_dump_json())


@cache
def _alone_with_phases(name: str, source: str) -> tuple[WorkerResult, RecordedPhases]:
    """Jobs that differ in their servers alone are the same one in a single process."""
    torch.set_num_threads(1)
    spec, phases = JobSpec.model_validate_json(source), RecordedPhases()
    with TemporaryDirectory() as place:
        finished = run(
            spec=spec,
            function=(ALL | ON_GPU)[name],
            coordinator=SingleMember(spec.shards),
            sink=phases,
            server=False,
            artifacts=Path(place),
        )
    return finished, phases


def undisturbed(name: str, mode: str) -> WorkerResult:
    return alone_with_phases(name, mode)[0]


def worker(mode: str, number: int) -> str:
    servers = MODES[mode].get("servers", 1) if "parameter_server" in MODES[mode].values() else 0
    return f"w{number + servers}"


@dataclass(frozen=True)
class Moment:
    """What happens to a program in a mode, and what shows that it did.

    Attributes:
        play: the attempts in their order, of which the last one ends the program.
        shows: whether the attempts show that it happened.
        step: it happens in the first turn behind so many committed steps.
        phase: or, where it is none of a turn, in this phase at exactly that step.
        dies: the second worker dies by itself when it comes there; where items are leased it may not.
    """

    play: Callable[[str, str, Path], list[Play]]
    shows: Callable[[list[Play], str], bool]
    step: int
    phase: str = "forward"
    dies: bool = False


NEVER = 1000
"""A generation that nobody hears of."""
STEPS_TO_FOLLOW = 6
"""Who comes late asks, runs lines, asks again, is given a copy, and follows for a step or two."""


def played(
    name: str,
    spec: JobSpec,
    faults: FaultPlan,
    place: Path,
    *,
    attempt: int = 1,
    joiners_follow: bool = False,
) -> Play:
    saved, train = str(place / "saved"), (ALL | ON_GPU)[name]
    cast = Cast(
        spec,
        train,
        faults,
        artifacts=place,
        checkpoints=saved,
        attempt=attempt,
        joiners_follow=joiners_follow,
    )
    return cast.play()


def replaced(out: int, by: int) -> Callable[[list[Play], str], bool]:
    """Whether a newcomer took part, to whom the lines that were over came late, and in the end somebody did not."""

    def shows(plays: list[Play], mode: str) -> bool:
        return joined(by)(plays, mode) and worker(mode, out) not in plays[0].plans[-1].members

    return shows


def joined(number: int) -> Callable[[list[Play], str], bool]:
    def shows(plays: list[Play], mode: str) -> bool:
        return any(worker(mode, number) in plan.members for plan in plays[0].plans[1:])

    return shows


def resumed(outcome: str) -> Callable[[list[Play], str], bool]:
    """Whether the first attempt ended so, with nobody at the program's end, and another one began with a checkpoint."""

    def shows(plays: list[Play], mode: str) -> bool:
        first, *others = plays
        restored = [*map(bool, (play.reported("checkpoint.restored") for play in others))]
        return (first.outcome, first.finished, restored) == (outcome, {}, [True])

    return shows


def kill(step: int, phase: str = "forward", past: int = 0, least: int = 2) -> Moment:
    """One of three dies there, having come there so often before, and the first one waits for who comes for it."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        faults = waits(dies(mode, step, phase, past), mode, comes=3)
        return [played(name, job(mode, least=least, most=3), faults, place)]

    return Moment(play, replaced(1, by=3), step, phase, dies=True)


def dies(mode: str, step: int, phase: str = "forward", past: int = 0) -> FaultPlan:
    """The second worker does, at an odd step of local SGD within the round that the step is in; where it has nothing to
    do at that step, at the next one."""
    odd = within_round(mode, step, phase)
    return FaultPlan().kill(
        worker(mode, 1), at_step=step - odd, phase=phase, past=past + odd, later=phase == "forward"
    )


def within_round(mode: str, step: int, phase: str = "forward") -> int:
    return step % 2 if mode == "local_sgd" and phase == "forward" else 0


def waits(faults: FaultPlan, mode: str, *, comes: int, by: int = 0) -> FaultPlan:
    """A survivor stays where it is in the generation behind a loss until the newcomer's begins."""
    return faults.linger(worker(mode, by), since_generation=2, for_generation=3, joined=worker(mode, comes))


def wait_at(faults: FaultPlan, mode: str, step: int, *, by: tuple[int, ...] = (0, 1)) -> FaultPlan:
    """These workers wait once the step is committed, until what the play asks for there has come."""
    for number in by:
        faults = faults.linger(worker(mode, number), since_step=step, for_generation=2)
    return faults


def nobody(step: int) -> Moment:
    """One of three dies there, and nobody comes in time: two end the program."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        faults = dies(mode, step).hold(worker(mode, 3), at_step=ANY, phase="parked", for_generation=NEVER)
        return [played(name, job(mode, least=2, most=3), faults, place)]

    def two_end(plays: list[Play], mode: str) -> bool:
        (first,) = plays
        last, two = first.plans[-1], [worker(mode, 0), worker(mode, 2)]
        return len(first.plans) > 1 and list(last.members[: last.world]) == two

    return Moment(play, two_end, step, dies=True)


def follow(step: int) -> Moment:
    """One of three dies there, and who comes for it follows a member while the others go on (in a ring)."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        first = worker(mode, 0)
        faults = dies(mode, step).linger(first, since_generation=2, for_generation=3, asked=True)
        faults = faults.dawdle(first, since_generation=2, for_generation=3, longer=2.0)
        return [played(name, job(mode, least=2, most=3), faults, place, joiners_follow=True)]

    def followed(plays: list[Play], mode: str) -> bool:
        tries = plays[0].tries(worker(mode, 3))
        return replaced(1, by=3)(plays, mode) and (tries > 0 or mode != "ring")

    return Moment(play, followed, step + STEPS_TO_FOLLOW, dies=True)


def join(step: int) -> Moment:
    """A third worker comes there; the others wait until its generation is announced."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        faults = wait_at(FaultPlan().resize(at_step=step, workers_min=2, workers_max=3), mode, step)
        return [played(name, job(mode, least=1, most=2), faults, place)]

    return Moment(play, joined(2), step)


def shrink(step: int) -> Moment:
    """A worker is let go there, and one goes on alone."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        faults = wait_at(FaultPlan().resize(at_step=step, workers_min=1, workers_max=1), mode, step)
        return [played(name, job(mode, least=2, most=2), faults, place)]

    def alone_at_last(plays: list[Play], mode: str) -> bool:
        return plays[0].worlds[-1] == 1

    return Moment(play, alone_at_last, step)


def drain(step: int) -> Moment:
    """The machine of one of two goes away there; the other one waits for who comes for it."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        faults = wait_at(FaultPlan().drain(worker(mode, 0), at_step=step), mode, step)
        return [played(name, job(mode, least=1, most=2), waits(faults, mode, by=1, comes=2), place)]

    return Moment(play, replaced(0, by=2), step)


def preempt(step: int) -> Moment:
    """A machine goes away there without which too few are left: the attempt ends and another one goes on."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        faults = wait_at(FaultPlan().drain(worker(mode, 0), at_step=step), mode, step)
        return attempts(name, mode, faults, place)

    return Moment(play, resumed("preempted"), step)


def evict(step: int) -> Moment:
    """One of three freezes there, and is killed for it; the first one waits for who comes for it."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        frozen = worker(mode, 1)
        faults = FaultPlan().linger(frozen, since_step=step, for_generation=NEVER).evict(frozen, at_step=step)
        faults = waits(wait_at(faults, mode, step, by=(0, 2)), mode, comes=3)
        return [played(name, job(mode, least=2, most=3), faults, place)]

    return Moment(play, replaced(1, by=3), step)


def attempts(name: str, mode: str, faults: FaultPlan, place: Path) -> list[Play]:
    """The first one, and the next one at another world size; one that ended before anything happened is the last."""
    first = played(name, job(mode, least=2, most=2), faults, place)
    if first.outcome == "succeeded":
        return [first]
    return [first, played(name, job(mode, least=3, most=3), FaultPlan(), place, attempt=2)]


def pause(step: int) -> Moment:
    def play(name: str, mode: str, place: Path) -> list[Play]:
        return attempts(name, mode, wait_at(FaultPlan().pause(at_step=step), mode, step), place)

    return Moment(play, resumed("paused"), step)


def restart(step: int) -> Moment:
    """Everybody dies there, or at the next turn behind it, once a checkpoint is written."""

    def play(name: str, mode: str, place: Path) -> list[Play]:
        faults, saved = FaultPlan(), place / "saved"
        for number in range(4):
            faults = faults.kill(worker(mode, number), at_step=step, once=saved, later=True)
        for server in ("s0", "s1"):
            # A server whose queue items are leased from commits every step, and has no turns.
            phase = "committed" if mode == "leased" else "forward"
            faults = faults.kill(server, at_step=step, phase=phase, once=saved, later=True)
        return attempts(name, mode, faults, place)

    return Moment(play, resumed("failed"), step)


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
    "servers": BY_HAND | SET_IN_A_BODY,
    "copies": BY_HAND | SET_IN_A_BODY,
    "local_sgd": set(BY_PHASES) | PHASED,
    "leased": UNSETTLED | set(MADE_ANEW) | RATES | BY_HAND | set(BY_STEPS) | set(BY_PHASES) | PHASED | RATED,
}
TABLE = [(name, mode) for name, mode in product(ALL, MODES) if name not in REFUSED.get(mode, ())]
WITHIN_A_STEP: dict[str, Moment] = {
    f"kill-{step}-{phase}-{past}": kill(step, phase, past)
    for step in (4, 9)
    for phase in ("forward", "exchange", "committed")
    for past in (0, 1)
}
"""In the first phase of a step and in its second one."""
AT_THE_END: dict[str, Moment] = {f"kill-{STEPS}-finish": kill(STEPS, "finish", least=3)}
"""All have run the program, and wait for each other."""
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
    "optimizer_made_anew_beside_a_loss_by_hand",
    "schedules_of_optimizers_made_anew",
    "optimizer_made_anew_in_another_order",
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


@pytest.mark.parametrize(
    "name", ["optimizer_state_held_without_a_copy", "optimizer_state_put_back_before_weights_are_read"]
)
def test_what_a_late_joiner_holds_of_an_optimizer_is_the_optimizer_s_own(name: str, tmp_path: Path) -> None:
    """It runs the lines of several calls before it has a seat: between them nothing gets out of place."""
    keeps_its_bits(name, "local_sgd", "follow-6", tmp_path)


def test_each_of_two_servers_resumes_with_its_part_of_what_the_program_kept(tmp_path: Path) -> None:
    """Lines between loops read the momentum, of which each server has a part, and run again behind a pause."""
    keeps_its_bits("optimizer_state_kept_and_put_back", "servers", "pause-12", tmp_path)


@pytest.mark.parametrize("moment", ["pause-12", "restart-12", "kill-9"])
@pytest.mark.parametrize("mode", DAILY)
def test_what_the_main_worker_reads_alone_is_no_part_of_a_checkpoint(
    mode: str, moment: str, tmp_path: Path
) -> None:
    keeps_its_bits("saved_by_the_main_worker_alone", mode, moment, tmp_path)


@pytest.mark.parametrize("mode", DAILY)
@pytest.mark.parametrize("name", CHANGED_AT_THE_END)
def test_who_comes_behind_the_last_loop_changes_the_models_there_too(
    name: str, mode: str, tmp_path: Path
) -> None:
    keeps_its_bits(name, mode, f"kill-{STEPS}-finish", tmp_path)


EVERY_DAY_WITHIN_A_STEP = [
    (name, ("ring", "servers")[(number + turn) % 2], moment)
    for number, name in enumerate(BY_PHASES)
    for turn, moment in enumerate(WITHIN_A_STEP)
]
"""Each program at each moment, and each moment in both modes: the others of the product are `make chaos`'s, since
tests/unit/test_phases.py kills a member in each of these phases in every mode."""


@pytest.mark.parametrize(("name", "mode", "moment"), EVERY_DAY_WITHIN_A_STEP)
def test_a_kill_in_any_phase_of_a_step_keeps_the_bits(
    name: str, mode: str, moment: str, tmp_path: Path
) -> None:
    keeps_its_bits(name, mode, moment, tmp_path)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("name", "mode", "moment"),
    sorted({*product(BY_PHASES, ("ring", "servers"), WITHIN_A_STEP)} - {*EVERY_DAY_WITHIN_A_STEP}),
)
def test_a_kill_in_any_phase_of_a_step_keeps_the_bits_in_the_other_mode(
    name: str, mode: str, moment: str, tmp_path: Path
) -> None:
    keeps_its_bits(name, mode, moment, tmp_path)


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
    what, (expected, phases) = (MOMENTS | WITHIN_A_STEP | AT_THE_END)[moment], alone_with_phases(name, mode)
    plays = what.play(name, mode, place)
    last = plays[-1]
    assert last.outcome == "succeeded", [(play.outcome, play.reason, play.message) for play in plays]
    assert {finished.reproducible_why for finished in last.finished.values()} == {""}
    assert last.digest == expected.digest
    assert [play.reported("member.differed") for play in plays] == [[] for _ in plays]
    assert what.shows(plays, mode) or not due(what, mode, expected.steps, phases, plays[0]), [
        (play.outcome, plan.cause, plan.members) for play in plays for plan in play.plans
    ]


def due(moment: Moment, mode: str, steps: int, phases: RecordedPhases, first: Play) -> bool:
    """Whether the moment has to be there: the program passes through its place, and something is left to do then."""
    if mode == "leased" and moment.step >= steps - 1:
        return False  # the others may take what is left before anybody can come
    if moment.dies and mode == "leased":
        # The worker may be leased no item from there on, or be lost when others have left the last loop.
        return len(first.plans) > 1 and first.plans[1].start_transaction < phases.calls
    if moment.phase != "forward":
        return phases.passed[moment.phase, moment.step] > 0
    odd = within_round(mode, moment.step) if moment.dies else 0
    # Each of three workers has a slice at least: after so many turns of one process it was at an odd step of a round.
    turns = [
        at for (phase, at), times in phases.passed.items() if phase == "forward" and times > odd * SHARDS
    ]
    return any(moment.step - odd <= at < steps for at in turns)
