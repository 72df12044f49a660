"""What a loop's body hands from one turn to the next is told before the first step, or as soon as it is seen, and the
result says that the bits are not the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import carriers
import pytest
import torch
from carriers import (
    ALL,
    CARRIERS,
    OPTIMIZERS,
    UNSEEN_IN_TEXT,
    hidden_state,
    optimizer_that_counts_in_a_group,
    optimizer_with_a_list,
    shown_while_it_trains,
)
from cast import Cast
from faults import FaultPlan
from library_carriers import HARMLESS, UNSEEN
from programs import BATCH, SHARDS
from programs_made_anew import ALL as ORDINARY

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import RecordedOutput, run_local
from ringleader.train.run import WorkerResult

SPEC = JobSpec.parse(
    {
        "name": "carried",
        "entrypoint": "carriers:train",
        "workers": {"min": 2, "max": 2},
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
        "checkpoint": {"every_steps": None},
        "sync": "ring",
    }
)


def in_mode(sync: Any) -> JobSpec:
    return JobSpec.parse(SPEC.model_dump(mode="json", exclude_unset=True) | {"sync": sync})


def run(
    program: Callable[[Session], None], place: Path, spec: JobSpec = SPEC
) -> tuple[WorkerResult, RecordedOutput]:
    torch.set_num_threads(1)
    return run_local(spec, program, place)


def line_of(text: str) -> str:
    lines = Path(carriers.__file__).read_text().splitlines()
    return f"carriers.py:{[line.strip() for line in lines].index(text) + 1}"


def warned(recorded: RecordedOutput) -> list[str]:
    return [
        data["message"] for kind, data in recorded.events if kind == "warning" and data["about"] == "variable"
    ]


@pytest.mark.parametrize("program", CARRIERS, ids=lambda program: program.__name__)
def test_what_a_turn_hands_to_a_later_one_is_warned_of_by_name_and_line(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    name, text = CARRIERS[program]
    _, recorded = run(program, tmp_path)
    assert [f"changes {name} ({line_of(text)})" in message for message in warned(recorded)] == [True]


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_a_result_that_depends_on_who_had_which_turn_says_so(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    finished, _ = run(program, tmp_path)
    assert ALL[program][0] in finished.reproducible_why


@pytest.mark.parametrize("program", UNSEEN_IN_TEXT, ids=lambda program: program.__name__)
def test_what_changes_in_a_body_beside_the_session_is_told_by_name_and_line(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    name, text = UNSEEN_IN_TEXT[program]
    _, recorded = run(program, tmp_path)
    told = [(data["variable"], data["line"]) for kind, data in recorded.events if kind == "program.differs"]
    assert told == [(name, line_of(text))]


@pytest.mark.parametrize("program", UNSEEN, ids=lambda program: program.__name__)
def test_what_changes_unseen_and_is_gone_on_from_is_named_in_the_run_itself(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    finished, recorded = run(program, tmp_path)
    told = {data["variable"] for kind, data in recorded.events if kind == "program.differs"}
    assert (told, finished.reproducible) == ({UNSEEN[program]}, False)


@pytest.mark.parametrize("program", HARMLESS, ids=lambda program: program.__name__)
def test_what_a_turn_fills_before_it_reads_it_or_only_shows_is_not_told(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    finished, recorded = run(program, tmp_path)
    warnings = [data for kind, data in recorded.events if kind == "warning"]
    assert (finished.reproducible_why, warnings) == ("", [])


@pytest.mark.parametrize("sync", ["ring", "local_sgd"])
@pytest.mark.parametrize("program", OPTIMIZERS, ids=lambda program: program.__name__)
def test_what_an_optimizer_keeps_outside_of_its_state_is_committed(
    program: Callable[[Session], None], sync: str, tmp_path: Path
) -> None:
    finished, recorded = run(program, tmp_path, in_mode(sync))
    assert (finished.reproducible_why, warned(recorded)) == ("", [])


def test_what_a_body_only_shows_may_go_on_from_turn_to_turn(tmp_path: Path) -> None:
    finished, recorded = run(shown_while_it_trains, tmp_path)
    assert (finished.reproducible_why, warned(recorded)) == ("", [])


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_body_carries_nothing(name: str, tmp_path: Path) -> None:
    finished, recorded = run(ORDINARY[name], tmp_path)
    assert (finished.reproducible_why, warned(recorded)) == ("", [])


def test_workers_hear_what_a_server_finds_in_an_optimizer(tmp_path: Path) -> None:
    servers = {"inter_node": "parameter_server", "intra_node": "parameter_server", "servers": 2}
    play = Cast(in_mode(servers), optimizer_with_a_list, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {
        (end.reproducible, "ListedMomentum.momenta" in end.reproducible_why) for end in play.finished.values()
    } == {(False, True)}


def test_settings_that_a_step_changes_on_a_server_are_refused_before_workers_differ(tmp_path: Path) -> None:
    plays = [
        Cast(in_mode(sync), optimizer_that_counts_in_a_group, FaultPlan(), artifacts=tmp_path).play()
        for sync in ("ring", "parameter_server")
    ]
    assert [play.outcome for play in plays] == ["succeeded", "failed"]
    assert {end.reproducible_why for end in plays[0].finished.values()} == {""}
    assert "CountingGroup.step() changes the setting 'k'" in plays[1].message


def test_workers_that_nothing_happens_to_say_that_their_bits_are_others(tmp_path: Path) -> None:
    play = Cast(SPEC, hidden_state, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {(end.reproducible, "hidden" in end.reproducible_why) for end in play.finished.values()} == {
        (False, True)
    }
