"""A program that runs as a worker would that comes in later: what differs is named, and ordinary programs differ in
nothing."""

import json
from pathlib import Path

import defects
import pytest
import torch
from cast import Cast
from defects import BODY, DEFECTS, HARMLESS
from faults import FaultPlan
from forks import processes
from hidden import FITTED, HIDDEN, KEPT, KEPT_DRAWS, LINE
from play import Play
from programs import BATCH, SHARDS
from programs_made_anew import ALL

from ringleader.spec import JobSpec
from ringleader.train.local import run_local
from ringleader.train.program_check.runs import check, joins

NOTHING: dict[str, list[tuple[str, str]]] = {"first": [], "again": [], "joins": []}


def job(entrypoint: str, place: Path) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "check",
            "entrypoint": entrypoint,
            "workers": {"min": 1, "max": 2},
            "batch": {"global_size": BATCH, "logical_shards": SHARDS},
            "params": {"file": str(place / "count")},
            "sync": "ring",
        }
    )


def run(spec: JobSpec, place: Path, which: str) -> None:
    torch.set_num_threads(1)
    found = joins(spec, place) if which == "joins" else check(spec, place, again=which == "again")
    (place / which).write_text(json.dumps(found))


def found(entrypoint: str, place: Path) -> dict[str, list[tuple[str, str]]]:
    """What each of the three runs found: variables with what stands in the line."""
    told = {}
    for which in ("first", "again", "joins"):
        process = processes().Process(target=run, args=(job(entrypoint, place), place, which))
        process.start()
        process.join()
        told[which] = [
            (finding["variable"], line_of(finding["line"]))
            for finding in json.loads((place / which).read_text())
        ]
    return told


def line_of(place: str) -> str:
    file, _, number = place.partition(":")
    return (Path(__file__).parent / file).read_text().splitlines()[int(number) - 1].strip()


@pytest.mark.parametrize("name", ALL)
def test_an_ordinary_program_differs_in_nothing(name: str, tmp_path: Path) -> None:
    assert found(f"{ALL[name].__module__}:{name}", tmp_path) == NOTHING


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_only_shown_may_differ(name: str, tmp_path: Path) -> None:
    assert found(f"defects:{name}", tmp_path) == NOTHING


@pytest.mark.parametrize("name", BODY)
def test_what_a_body_leaves_to_lines_behind_it_is_named_by_the_text(name: str, tmp_path: Path) -> None:
    assert BODY[name] in found(f"defects:{name}", tmp_path)["first"]


@pytest.mark.parametrize("name", DEFECTS)
def test_what_differs_when_lines_run_again_is_named_by_variable_and_line(name: str, tmp_path: Path) -> None:
    assert DEFECTS[name] in found(f"defects:{name}", tmp_path)["again"]


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_body_keeps_for_itself_is_found_by_its_gradients(name: str, tmp_path: Path) -> None:
    assert ("loop body", LINE) in found(f"hidden:{name}", tmp_path)["first"]


@pytest.mark.parametrize("name", FITTED)
def test_what_a_body_keeps_of_its_first_rows_is_found_by_its_loss(name: str, tmp_path: Path) -> None:
    told = found(f"hidden:{name}", tmp_path)
    [(variable, line)] = told["joins"]
    assert (told["first"], variable) == ([], "loop body")
    assert line.startswith("for x, y in session.batches(data or rows()")


@pytest.mark.parametrize("name", KEPT_DRAWS)
def test_a_random_value_that_is_kept_is_found_by_what_is_drawn(name: str, tmp_path: Path) -> None:
    assert found(f"hidden:{name}", tmp_path)["first"] == [KEPT_DRAWS[name]]


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_without_chance_is_no_difference(name: str, tmp_path: Path) -> None:
    assert found(f"hidden:{name}", tmp_path) == NOTHING


def joined(program: str, place: Path) -> Play:
    """A second worker comes in behind finished loops; the first one waits for it there."""
    faults = FaultPlan().resize(at_step=10, workers_min=2, workers_max=2)
    faults = faults.hold("w0", at_step=10, for_generation=2, phase="exchange")
    spec = job(f"defects:{program}", place)
    spec = spec.model_copy(update={"workers": spec.workers.model_copy(update={"max": 1})})
    return Cast(spec, getattr(defects, program), faults, artifacts=place).play()


def test_all_members_know_what_one_of_them_found(tmp_path: Path) -> None:
    play = joined("hidden_generator", tmp_path)
    told = [report.data for report in play.reports if report.type == "program.differs"]
    assert ("DRAW", "defects.py") in [(each["variable"], each["line"].partition(":")[0]) for each in told]
    assert len({each["variable"] for each in told}) == len(told)
    assert [("DRAW" in end.reproducible_why, end.reproducible) for end in play.finished.values()] == [
        (True, False)
    ] * 2


def test_a_joiner_gets_by_a_mean_over_a_body_that_it_did_not_run(tmp_path: Path) -> None:
    play = joined("shown_means", tmp_path)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.worlds == [1, 2]
    assert {end.reproducible_why for end in play.finished.values()} == {""}


def test_a_program_that_leaves_a_sum_to_lines_behind_the_loop_is_warned_of_once(tmp_path: Path) -> None:
    spec = JobSpec.parse(
        job("defects:running_loss", tmp_path).model_dump(mode="json") | {"checkpoint": {"every_steps": None}}
    )
    _, recorded = run_local(spec, defects.running_loss, tmp_path)
    told = [data for kind, data in recorded.events if kind == "warning" and data["about"] == "variable"]
    assert [data["message"].partition(" (")[0].rpartition(" ")[2] for data in told] == ["running", "count"]
