"""What a training function raises: the error says where in the program."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import TensorDataset

from ringleader import Session
from ringleader.errors import EntrypointRaised, StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.local import run_local

torch.set_num_threads(1)
SPEC: dict[str, Any] = {
    "name": "unit",
    "entrypoint": "unit:train",
    "workers": {"max": 4},
    "batch": {"global_size": 16},
}


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(56, 5, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


class Raises:
    """A training function that raises at one of its places."""

    def __init__(self, place: str, *, held: bool = False) -> None:
        self.place, self.held = place, held

    def at(self, place: str) -> None:
        if place == self.place:
            raise KeyError("where is it")

    def __call__(self, session: Session) -> None:
        self.at("top")
        model = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in range(3):
            batches = [session.batches(rows())]
            for x, y in batches[0] if self.held else batches.pop():
                if session.global_step == 6:
                    self.at("turn")
                session.step(F.cross_entropy(model(x), y))
                if session.global_step == 6:
                    self.at("behind")
                    if self.place == "exit":
                        raise SystemExit(3)
                    if self.place == "interrupt":
                        raise KeyboardInterrupt
            if epoch == 1:
                self.at("between")
                session.evaluate(rows(), self.score)
        self.at("end")

    def score(self, _batch: Any) -> dict[str, Tensor]:
        self.at("score")
        return {"one": torch.ones(len(_batch[0]))}


@pytest.mark.parametrize(
    ("place", "where"),
    [
        ("top", "raised before the first step:"),
        ("turn", r"raised in step 7 \(session.global_step 6, epoch 1, slice 0\):"),
        ("behind", "raised after step 6, in epoch 1:"),
        ("exit", "raised after step 6, in epoch 1:"),
        ("interrupt", "raised after step 6, in epoch 1:"),
        ("between", "raised after step 8 and the loop of epoch 1:"),
        ("score", "raised after step 8 and the loop of epoch 1:"),
        ("end", "raised after step 12 and the loop of epoch 2:"),
    ],
)
def test_what_a_program_raises_names_its_step_epoch_and_slice(place: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(EntrypointRaised, match=where) as caught:
        run_local(SPEC, Raises(place), tmp_path)
    assert "Traceback" in caught.value.message
    last = {"exit": "SystemExit", "interrupt": "KeyboardInterrupt"}.get(place, "where is it")
    assert last in caught.value.message.splitlines()[-1]


def refused_in_a_turn(session: Session) -> None:
    model = session.model(nn.Linear(5, 2))
    session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in session.batches(rows()):
        loss = F.cross_entropy(model(x), y)
        session.step(loss, phase="warm" if session.global_step == 2 else 0.0)  # the metric


def refused_behind_a_loop(session: Session) -> None:
    model = session.model(nn.Linear(5, 2))
    session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(model(x), y))
    session.evaluate(rows(), lambda _batch: {"one": 0.5})  # the score


def refused_at_the_top(session: Session) -> None:
    session.scheduler("cosine")  # the schedule


@pytest.mark.parametrize(
    ("train", "where", "text"),
    [
        (refused_in_a_turn, "in step 3 (session.global_step 2, epoch 0, slice 0)", "# the metric"),
        (refused_behind_a_loop, "after step 4 and the loop of epoch 0", "# the score"),
        (refused_at_the_top, "before the first step", "# the schedule"),
    ],
)
def test_what_the_session_refuses_names_its_place_too(
    train: Any, where: str, text: str, tmp_path: Path
) -> None:
    lines = enumerate(Path(__file__).read_text().splitlines(), start=1)
    line = next(number for number, line in lines if line.endswith(text))
    with pytest.raises(StepMisuse) as caught:
        run_local(SPEC, train, tmp_path)
    assert caught.value.message.endswith(f" This was {where}, at test_raised.py:{line}.")
    assert caught.value.hint


@pytest.mark.parametrize("held", [False, True], ids=["the loop's own", "in a variable"])
@pytest.mark.parametrize("place", ["turn", "behind", "between"])
def test_a_program_that_raises_leaves_the_thread_as_it_was(place: str, held: bool, tmp_path: Path) -> None:
    """What watches its tensors between loops is gone with it, also where a traceback keeps the loop's iterator."""
    train = Raises(place, held=held)
    with pytest.raises(EntrypointRaised) as caught:
        run_local(SPEC, train, tmp_path)
    assert _get_current_dispatch_mode_stack() == []
    del train, caught
    gc.collect()
    assert _get_current_dispatch_mode_stack() == []


class Collects:
    """Collects what a loop's body, a score function or a callback sees, and reads it in lines that run again."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, session: Session) -> None:
        model = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            seen: list[int] = []
            if self.where == "on_commit":
                session.on_commit(lambda seen=seen: seen.append(1))
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(model(x), y))

            def score(batch: Any, seen: list[int] = seen) -> dict[str, Tensor]:
                seen += [1] * (self.where == "score")
                return {"one": torch.ones(len(batch[0]))}

            session.evaluate(rows(), score)
            if self.where != "nowhere":
                assert seen[-1] == 1
            elif session.global_step == 12:
                raise KeyError("of its own")


def resumed(train: Any, place: Path) -> str:
    """The message of the attempt behind a pause in the second epoch."""
    ring = {"sync": {"inter_node": "ring", "intra_node": "ring"}, "workers": {"min": 1, "max": 1}}
    spec, saved = JobSpec.parse(SPEC | ring), str(place / "saved")
    first = ThreadedCast(
        spec, train, FaultPlan().pause(at_step=6), artifacts=place / "1", checkpoints=saved
    ).play()
    assert first.outcome == "paused", first.message
    return ThreadedCast(spec, train, artifacts=place / "2", checkpoints=saved, attempt=2).play().message


@pytest.mark.parametrize("where", ["score", "on_commit"])
def test_what_raises_in_lines_that_run_again_says_that_the_calls_before_were_not_repeated(
    where: str, tmp_path: Path
) -> None:
    first, _, rest = resumed(Collects(where), tmp_path).partition("\n")
    assert "raised after step 4 and the loop of epoch 0. These lines ran again on this worker." in first
    assert "were not repeated here" in first
    assert "what-runs-again:" in first
    assert rest.startswith("Traceback")
    assert "IndexError" in rest


def test_what_raises_in_lines_that_run_for_the_first_time_says_nothing_of_the_kind(tmp_path: Path) -> None:
    message = resumed(Collects("nowhere"), tmp_path)
    assert "KeyError: 'of its own'" in message
    assert "ran again" not in message
