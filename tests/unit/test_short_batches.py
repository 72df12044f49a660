"""The short last batch of a pass: what would get a single row of it is warned of, and it can be left out."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ringleader
from ringleader.errors import NoStep, RingleaderError, StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, SingleMember, alone, run_local
from ringleader.train.run import run

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
SPEC: dict[str, Any] = {
    "name": "unit",
    "entrypoint": "unit:train",
    "workers": {"min": 2, "max": 2},
    "batch": {"global_size": 8, "logical_shards": 4},
}


def rows(count: int) -> TensorDataset:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(session: ringleader.Session, count: int, *, drop_last: bool = False, norm: bool = True) -> None:
    layers = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Linear(8, 2)]
    net = session.model(nn.Sequential(*layers))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    session.total_steps(rows(count), epochs=2, drop_last=drop_last)
    for _ in range(2):
        for x, y in session.batches(rows(count), drop_last=drop_last):
            session.step(F.cross_entropy(net(x), y))


def train_spatial(session: ringleader.Session, count: int) -> None:
    """A channel has four values even in one row: nothing fails."""
    net = session.model(nn.Sequential(nn.Conv1d(1, 3, 1), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 2)))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(3):
        for x, y in session.batches(rows(count)):
            session.step(F.cross_entropy(net(x[:, None]), y))


def run_on(
    count: int, artifacts: Path, spec: dict[str, Any] = SPEC, **kwargs: Any
) -> tuple[int, RecordedOutput]:
    finished, sink = run_local(spec, lambda session: train(session, count, **kwargs), artifacts)
    return finished.steps, sink


def warnings(sink: RecordedOutput) -> list[dict[str, Any]]:
    return [data for kind, data in sink.events if kind == "warning"]


def test_batch_norm_that_would_get_one_row_is_warned_of_before_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RingleaderError, match="more than 1 value per channel"):
        run_on(18, tmp_path)
    said = capsys.readouterr().out
    assert "the last batch of a pass over 18 rows has 2 rows for 4 logical shards" in said
    assert "drop_last=True" in said


def test_without_its_short_last_batch_a_pass_has_whole_batches_and_no_warning(tmp_path: Path) -> None:
    steps, sink = run_on(18, tmp_path, drop_last=True)
    assert steps == 2 * (18 // 8)
    assert not warnings(sink)


@pytest.mark.parametrize(
    ("count", "norm"), [(16, True), (18, False)], ids=["no short batch", "no batch norm"]
)
def test_what_cannot_fail_is_not_warned_of(tmp_path: Path, count: int, norm: bool) -> None:
    assert not warnings(run_on(count, tmp_path, norm=norm)[1])


def test_a_batch_that_gives_every_slice_one_row_is_warned_of_once_with_its_own_cure(tmp_path: Path) -> None:
    spec = SPEC | {"batch": {"global_size": 4, "logical_shards": 4}}

    warned = warnings(run_local(spec, partial(train_spatial, count=16), tmp_path)[1])
    assert [warning["about"] for warning in warned] == ["batch_norm"]
    assert "batch.global_size to 8" in warned[0]["hint"]


SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
MODES: dict[str, Any] = {
    "ring": "ring",
    "a server": SERVERS | {"servers": 1},
    "servers": SERVERS | {"servers": 2},
    "backups": SERVERS | {"server_backups": 1},
    "leased": SERVERS | {"servers": 1, "consistency": "async"},
    "local_sgd": {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 2},
    "token_ring": "token_ring",
}


@pytest.mark.parametrize("mode", MODES)
def test_a_warning_comes_once_from_a_group_and_not_from_each_member(mode: str, tmp_path: Path) -> None:
    spec = JobSpec.parse(SPEC | {"sync": MODES[mode]})
    play = Cast(spec, partial(train_spatial, count=18), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", play.message
    assert [told["about"] for told in play.reported("warning")] == ["batch_norm"]


@pytest.mark.parametrize("mode", ["a server", "servers", "backups"])
def test_a_warning_comes_once_though_all_who_gave_it_are_lost(mode: str, tmp_path: Path) -> None:
    """What it foresees ends both workers; who takes their place finds the same, and reports in their place."""
    spec = JobSpec.parse(SPEC | {"sync": MODES[mode]})
    play = Cast(spec, partial(train, count=18), artifacts=tmp_path).play()
    assert (play.outcome, len(play.plans) > 1) == ("failed", True)
    assert [told["about"] for told in play.reported("warning")] == ["batch_norm"]


def test_an_attempt_that_goes_on_from_a_checkpoint_does_not_warn_again(tmp_path: Path) -> None:
    spec = JobSpec.parse(SPEC | {"workers": {"min": 1, "max": 1}, "checkpoint": {"every_steps": 2}})
    place = str(tmp_path / "saved")
    faults = FaultPlan().kill("w0", at_step=6)
    told: list[str] = []
    for attempt, cues in ((1, faults), (2, FaultPlan())):
        train = partial(train_spatial, count=18)
        cast = Cast(spec, train, cues, tmp_path / str(attempt), checkpoints=place, attempt=attempt)
        play = cast.play()
        told += [warning["about"] for warning in play.reported("warning")]
    assert play.outcome == "succeeded", play.message
    assert play.reported("checkpoint.restored")
    assert told == ["batch_norm"]


def test_a_pass_that_drop_last_leaves_no_batch_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StepMisuse, match=r"leaves no batch: the dataset has 5 rows, and a global batch has 8"
    ):
        run_on(5, tmp_path, drop_last=True)


def test_a_loop_over_no_rows_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoStep):
        run_on(0, tmp_path)
    assert "the data set of a loop has no rows" in capsys.readouterr().out


def test_total_steps_and_passes_count_the_same_batches(tmp_path: Path) -> None:
    for drop_last in (False, True):
        with ringleader.local_session(SPEC) as session:
            told = session.total_steps(rows(18), epochs=2, drop_last=drop_last)
        assert told == run_on(18, tmp_path, drop_last=drop_last, norm=False)[0]


def train_without_a_value(session: ringleader.Session) -> None:
    net = asked(session)
    for x, y in session.batches(rows(32)):
        session.step(F.cross_entropy(net(x), y), ratio=float("inf"), fine=1.0, none=float("nan"))


@pytest.mark.parametrize("mode", ["ring", "servers", "leased"])
def test_a_metric_without_a_finite_value_is_warned_of_once_and_not_dropped_in_silence(
    mode: str, tmp_path: Path
) -> None:
    spec = JobSpec.parse(SPEC | {"sync": MODES[mode]})
    play = Cast(spec, train_without_a_value, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", play.message
    told = [warning["message"] for warning in play.reported("warning") if warning["about"] == "metric"]
    assert sorted(words.split("'")[1] for words in told) == ["none", "ratio"]


def asked(session: ringleader.Session) -> nn.Module:
    net = session.model(nn.Linear(4, 2))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    return net


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"shuffle": "no"}, "shuffle='no', a str"),
        ({"shuffle": None}, "shuffle=None, a NoneType"),
        ({"drop_last": 1}, "drop_last=1, a int"),
        ({"loader_workers": -1}, "loader_workers=-1"),
        ({"loader_workers": 1.5}, "loader_workers=1.5"),
        ({"loader_workers": True}, "loader_workers=True"),
    ],
    ids=str,
)
def test_an_argument_that_would_be_taken_for_another_is_refused(given: dict[str, Any], says: str) -> None:
    with ringleader.local_session(SPEC) as session:
        asked(session)
        for loop in (session.batches, session.steps):
            with pytest.raises(StepMisuse, match=re.escape(says)):
                loop(rows(16), **given)
        if "loader_workers" in given:
            with pytest.raises(StepMisuse, match=re.escape(says)):
                session.evaluate(rows(16), lambda batch: {"s": batch[1]}, **given)


@pytest.mark.parametrize("epochs", [-1, 2.5, True, "2"])
def test_a_number_of_passes_that_is_none_is_refused(epochs: Any) -> None:
    with (
        ringleader.local_session(SPEC) as session,
        pytest.raises(StepMisuse, match=f"epochs={epochs!r}"),
    ):
        session.total_steps(rows(16), epochs=epochs)


class Shown(RecordedOutput):
    """Keeps the progress that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[tuple[int, int | None]] = []

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        self.totals.append((step, total_steps))


def train_by_phases(session: ringleader.Session) -> None:
    net = asked(session)
    for _ in range(2):
        assert session.total_steps(rows(32), epochs=1) == 4
        for x, y in session.batches(rows(32)):
            session.step(F.cross_entropy(net(x), y))


def test_the_steps_that_are_over_count_among_those_of_the_whole_job(tmp_path: Path) -> None:
    """A second phase of four steps behind four is not the fifth of four."""
    shown, spec = Shown(), JobSpec.parse(SPEC)
    alone_in_it = SingleMember(spec.shards)
    run(
        spec=alone(spec),
        function=train_by_phases,
        coordinator=alone_in_it,
        sink=shown,
        server=False,
        artifacts=tmp_path,
    )
    assert {total for _, total in shown.totals if total is not None} == {4, 8}
    assert all(total is None or step <= total for step, total in shown.totals)


def test_an_evaluation_over_no_rows_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    with ringleader.local_session(SPEC) as session:
        net = asked(session)
        for x, y in session.batches(rows(16)):
            session.step(F.cross_entropy(net(x), y))
        assert session.evaluate(rows(0), lambda batch: {"s": batch[1]}) == {}
    assert capsys.readouterr().out.count("the data set of an evaluation has no rows: it has no scores.") == 1


def test_a_score_of_the_wrong_shape_that_the_program_catches_is_named_by_the_next_call() -> None:
    """It was an error of the engine's own, said to be one of the next score."""
    with ringleader.local_session(SPEC) as session:
        net = asked(session)
        for x, y in session.batches(rows(16)):
            session.step(F.cross_entropy(net(x), y))
        with pytest.raises(StepMisuse, match=r"has shape \(1,\)"):
            session.evaluate(rows(16), lambda batch: {"s": torch.zeros(1)})
        with pytest.raises(StepMisuse, match=r"caught \(StepMisuse: score 's' has shape"):
            session.evaluate(rows(16), lambda batch: {"s": batch[1]})
