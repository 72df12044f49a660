"""A program is checked beside its job: what would differ on a worker that comes in is named where nobody comes and
nobody goes, and of ordinary programs nothing is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import defects
import programs
import pytest
from cast import Cast
from defects import DEFECTS
from faults import FaultPlan
from hidden import FITTED, HIDDEN, LINE, Centred
from play import Play
from programs import BATCH, SHARDS
from torch.nn import functional as F

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.program_check.background import CheckWorkspace

TWO = {"workers": {"min": 2, "max": 2}}
PARAMETER_SERVER = {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2}
MODES: dict[str, dict[str, Any]] = {
    "ring": TWO,
    "servers": {**TWO, "sync": PARAMETER_SERVER},
    "local_sgd": {**TWO, "sync": "local_sgd"},
}


@dataclass(frozen=True)
class Made:
    """Makes the folders of checks, and counts them over all workers."""

    place: Path

    def __call__(self) -> Path:
        # Two workers may check at the same time, where one was lost.
        folder = Path(mkdtemp(prefix="check-", dir=self.place))
        folder.with_suffix(".made").touch()
        return folder

    @property
    def count(self) -> int:
        return len(list(self.place.glob("*.made")))


def at_once(place: Path) -> CheckWorkspace:
    """The checks wait for nothing, nor for a machine with time to spare."""
    return CheckWorkspace(Made(place), after_s=0.0, niceness=0)


def job(entrypoint: str, place: Path, **more: Any) -> JobSpec:
    source = {
        "name": "beside",
        "entrypoint": entrypoint,
        "workers": {"min": 1, "max": 1},
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
        "params": {"file": str(place / "count")},
        "sync": "ring",
    }
    return JobSpec.parse(source | more)


def play(
    function: Callable[[Session], None], place: Path, faults: FaultPlan | None = None, **more: Any
) -> Play:
    spec = job(f"{function.__module__}:{function.__name__}", place, **more)
    return Cast(spec, function, faults or FaultPlan(), artifacts=place, beside=at_once(place)).play()


def named(play: Play) -> list[tuple[str, str]]:
    """What the check has found: variables with what stands in the line."""
    # Some of it is seen between two turns, too, where a worker has both.
    told = [data for data in play.reported("program.differs") if data.get("beforehand")]
    return [(data["variable"], line_of(data["line"])) for data in told]


def line_of(place: str) -> str:
    file, _, number = place.partition(":")
    return (Path(__file__).parent / file).read_text().splitlines()[int(number) - 1].strip()


@pytest.mark.parametrize("name", DEFECTS)
def test_what_would_differ_is_named_where_nobody_comes_and_nobody_goes(name: str, tmp_path: Path) -> None:
    told = play(getattr(defects, name), tmp_path)
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert told.worlds == [1]
    found = named(told)
    assert DEFECTS[name] in found
    assert len(set(found)) == len(found)
    [end] = told.finished.values()
    assert (found[0][0] in end.reproducible_why, end.reproducible) == (True, False)


@pytest.mark.parametrize(
    ("name", "mode"),
    # The process computes as a ring does, whatever the job's mode: of the others one program tells.
    [
        *((name, "ring") for name in HIDDEN),
        ("count_of_a_data_set", "servers"),
        ("mutable_default", "local_sgd"),
    ],
)
def test_what_a_body_keeps_for_itself_is_found_while_the_job_runs(
    name: str, mode: str, tmp_path: Path
) -> None:
    told = play(HIDDEN[name], tmp_path, **MODES[mode])
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert ("loop body", LINE) in named(told)
    whys = [end.reproducible_why for end in told.finished.values()]
    # Who has seen what a turn hands on tells of that.
    assert all("loop body" in why or "is carried from one turn" in why for why in whys)
    assert {end.reproducible for end in told.finished.values()} == {False}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "ring") for name in FITTED),
        ("first_row_of_a_data_set", "servers"),
        ("first_row_of_a_data_set", "local_sgd"),
        ("scale_in_the_environment", "local_sgd"),
    ],
)
def test_what_a_body_keeps_of_its_first_rows_is_found_while_the_job_runs(
    name: str, mode: str, tmp_path: Path
) -> None:
    told = play(FITTED[name], tmp_path, **MODES[mode])
    assert told.outcome == "succeeded", (told.reason, told.message)
    [found] = [each for each in told.reported("program.differs") if each.get("beforehand")]
    assert found["variable"] == "loop body"
    assert line_of(found["line"]).startswith("for x, y in session.batches(data or rows()")
    assert found["how"].startswith("gives another loss in a worker that joins")
    assert {end.reproducible for end in told.finished.values()} == {False}


def first_row_in_one_loop(session: Session) -> None:
    """The loop that most jobs have for hours."""
    net = session.model(programs.network())
    programs.sgd(session, net)
    for x, y in session.batches(Centred()):
        session.step(F.cross_entropy(net(x), y))


ROUNDS = {**TWO, "sync": {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2}}


@pytest.mark.parametrize("mode", [MODES["ring"], MODES["servers"], ROUNDS], ids=MODES)
def test_the_first_loop_of_a_job_is_checked(mode: dict[str, Any], tmp_path: Path) -> None:
    """Also where servers give all workers their first state: nothing of a body has been compared by then."""
    told = play(first_row_in_one_loop, tmp_path, **mode)
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert ([variable for variable, _ in named(told)], Made(tmp_path).count) == (["loop body"], 1)
    assert {end.reproducible for end in told.finished.values()} == {False}


@pytest.mark.parametrize(
    ("name", "mode", "checks"),
    [
        ("best_weights_in_a_variable", "ring", 2),
        ("plateau", "servers", 2),
        ("plateau", "local_sgd", 2),
    ],
)
def test_of_an_ordinary_program_nothing_is_named(name: str, mode: str, checks: int, tmp_path: Path) -> None:
    told = play(programs.PROGRAMS[name], tmp_path, **MODES[mode])
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert (named(told), Made(tmp_path).count) == ([], checks)
    assert {(end.reproducible, end.reproducible_why) for end in told.finished.values()} == {(True, "")}
    assert not [path for path in tmp_path.glob("check-*") if path.is_dir()]


def momentum_of_a_weight_removed(session: Session) -> None:
    """A process without anything of the state would raise there."""
    net = session.model(programs.network())
    optimizer = programs.sgd(session, net)
    for _ in range(programs.EPOCHS):
        programs.epoch(session, net, programs.rows())
        del optimizer.state[next(net.parameters())]


@pytest.mark.parametrize(
    "function",
    [programs.PROGRAMS["optimizer_state_kept_and_put_back"], momentum_of_a_weight_removed],
)
def test_what_servers_keep_of_an_optimizer_is_as_closed_beside_the_job(
    function: Callable[[Session], None], tmp_path: Path
) -> None:
    told = play(function, tmp_path, **MODES["servers"])
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert (told.reported("program.differs"), Made(tmp_path).count) == ([], 2)
    assert {(end.reproducible, end.reproducible_why) for end in told.finished.values()} == {(True, "")}


def test_a_check_changes_no_bit(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    function = programs.PROGRAMS["plateau"]
    checked = play(function, tmp_path / "with")
    spec = job(f"programs:{function.__name__}", tmp_path)
    assert Cast(spec, function, artifacts=tmp_path).play().digest == checked.digest


@pytest.mark.parametrize(
    ("mode", "first", "step"),
    [(MODES["ring"], "w0", 1), (MODES["servers"], "w2", 1), (ROUNDS, "w0", 2)],
    ids=MODES,
)
def test_where_the_worker_that_checks_is_lost_the_next_one_does(
    mode: dict[str, Any], first: str, step: int, tmp_path: Path
) -> None:
    """It is killed once its process has found something, and before it has told."""
    faults = FaultPlan().kill(first, at_step=step)
    more = {**mode, "workers": {"min": 1, "max": 2}}
    told = play(HIDDEN["count_of_a_data_set"], tmp_path, faults, **more)
    assert (told.outcome, len(told.plans) > 1) == ("succeeded", True), (told.reason, told.message)
    assert ("loop body", LINE) in named(told)
    assert {end.reproducible for end in told.finished.values()} == {False}


def test_a_worker_that_comes_in_checks_where_nobody_has(tmp_path: Path) -> None:
    """Both workers of the begin are lost before either has told."""
    faults = FaultPlan().kill("w0", at_step=1).kill("w1", at_step=5)
    told = play(HIDDEN["count_of_a_data_set"], tmp_path, faults, workers={"min": 1, "max": 2})
    assert (told.outcome, ("loop body", LINE) in named(told)) == ("succeeded", True), told.message


def test_a_worker_that_takes_another_ones_place_does_not_check_again(tmp_path: Path) -> None:
    """It runs lines again, and is compared."""
    faults = FaultPlan().kill("w0", at_step=30)
    told = play(defects.hidden_generator, tmp_path, faults, workers={"min": 1, "max": 2})
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert (Made(tmp_path).count, len(told.plans) > 1) == (2, True)


def test_a_resumed_job_is_not_checked_again(tmp_path: Path) -> None:
    """All of its workers run lines again, and are compared."""
    checkpoints = str(tmp_path / "checkpoints")
    spec = job("defects:hidden_generator", tmp_path, checkpoint={"every_steps": 100})
    paused = Cast(
        spec,
        defects.hidden_generator,
        FaultPlan().pause(at_step=20),
        artifacts=tmp_path,
        beside=at_once(tmp_path),
        checkpoints=checkpoints,
    )
    assert paused.play().outcome == "paused"
    first = Made(tmp_path).count
    paused.cues, paused.attempt = FaultPlan(), 2
    resumed = paused.play()
    assert (resumed.outcome, first, Made(tmp_path).count) == ("succeeded", 2, 2)
    assert "DRAW" in next(iter(resumed.finished.values())).reproducible_why
