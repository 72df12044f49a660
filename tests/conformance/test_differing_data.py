"""Every worker begins with the same data and the same weights: what each of them made otherwise is told by name."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cast import Cast
from faults import FaultPlan
from programs import epoch, norm_free, rows, sgd
from test_carried import SPEC, in_mode
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from ringleader.train import Session


class Listed(Dataset[Any]):
    """Rows in the order in which a folder happens to list them; counts, for a log line, how many were read."""

    def __init__(self, draw: random.Random) -> None:
        self.rows, self.read = rows(), 0
        self.files = list(range(len(self.rows)))
        draw.shuffle(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Any:
        self.read += 1
        return self.rows[self.files[row]]


def drawn(generator: np.random.Generator) -> TensorDataset:
    points = torch.from_numpy(generator.normal(size=(48, 6))).float()
    return TensorDataset(points, (points[:, 0] > 0).long())


MADE: dict[str, Callable[[int | None], Any]] = {
    "data.indices": lambda seed: Subset(rows(), np.random.default_rng(seed).permutation(48)[:36].tolist()),
    "data.tensors": lambda seed: drawn(np.random.default_rng(seed)),
    "data.datasets[1].indices": lambda seed: ConcatDataset(
        [rows(), Subset(rows(1), np.random.default_rng(seed).permutation(48)[:12].tolist())]
    ),
    "data.files": lambda seed: Listed(random.Random(seed)),
    "data.dataset.files": lambda seed: Subset(Listed(random.Random(seed)), range(36)),
}
"""Data of a seed, or of none, by the name of what differs."""


class Program:
    """Trains on such data."""

    def __init__(self, name: str, seed: int | None) -> None:
        self.name, self.seed = name, seed

    def __call__(self, session: Session) -> None:
        net = session.model(norm_free())
        sgd(session, net)
        for _ in range(2):
            epoch(session, net, MADE[self.name](self.seed))


def told(name: str, seed: int | None, place: Path) -> set[tuple[bool, bool]]:
    """What each worker's end says of it: whether it is reproducible, and whether it names what differs."""
    play = Cast(SPEC, Program(name, seed), FaultPlan().kill("w1", at_step=5), artifacts=place).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    return {(end.reproducible, name in end.reproducible_why) for end in play.finished.values()}


@pytest.mark.parametrize("name", MADE)
def test_data_that_each_worker_makes_otherwise_are_told_by_name(name: str, tmp_path: Path) -> None:
    assert told(name, None, tmp_path) == {(False, True)}


@pytest.mark.parametrize("name", MADE)
def test_data_of_a_seed_are_alike(name: str, tmp_path: Path) -> None:
    assert told(name, 3, tmp_path) == {(True, False)}


def within_another(session: Session) -> None:
    split = MADE["data.indices"](None)
    net = session.model(norm_free())
    sgd(session, net)
    epoch(session, net, ConcatDataset([rows(), split]))


def test_data_within_others_are_told_by_the_variable_that_holds_them(tmp_path: Path) -> None:
    play = Cast(SPEC, within_another, FaultPlan(), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert all("split.indices" in end.reproducible_why for end in play.finished.values())


def drawn_weights(session: Session, generator: np.random.Generator) -> None:
    net = norm_free()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.from_numpy(generator.normal(0, 0.3, tuple(weight.shape))).float())
    session.model(net)
    del generator  # a variable is compared for itself
    sgd(session, net)
    epoch(session, net, rows())


def without_a_seed(session: Session) -> None:
    drawn_weights(session, np.random.default_rng())


def seeded(session: Session) -> None:
    drawn_weights(session, np.random.default_rng(3))


@pytest.mark.parametrize("sync", ["ring", "parameter_server"])
def test_initial_weights_without_a_seed_are_told(sync: str, tmp_path: Path) -> None:
    spec = in_mode(sync)
    for program, same in ((without_a_seed, False), (seeded, True)):
        place = tmp_path / program.__name__
        place.mkdir()
        play = Cast(spec, program, FaultPlan(), artifacts=place).play()
        assert play.outcome == "succeeded", (play.reason, play.message)
        whys = {end.reproducible_why.partition(" (")[0] for end in play.finished.values()}
        assert whys == ({""} if same else {"the initial weights"}), program.__name__
