"""What a data set keeps of rows that it has read differs from worker to worker, and no result depends on it."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_leaving import RING, SERVERS, job, made, rows
from threaded_cast import ThreadedCast
from torch.nn import functional as F

from ringleader.train import Session

torch.set_num_threads(1)


class Reads:
    """Reads a row of the data."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> Any:
        return self.data[row]


class Cached(Reads):
    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, row: int) -> Any:
        if row not in self.cache:
            self.cache[row] = self.data[row]
        return self.cache[row]


class Asked(Cached):
    def __getitem__(self, row: int) -> Any:
        item = self.cache.get(row)
        if item is None:
            item = self.data[row]
            self.cache[row] = item
        return item


class Tried(Cached):
    def __getitem__(self, row: int) -> Any:
        try:
            return self.cache[row]
        except KeyError:
            self.cache[row] = self.data[row]
            return self.cache[row]


class Defaulted(Cached):
    def __getitem__(self, row: int) -> Any:
        return self.cache.setdefault(row, self.data[row])


class Slots(Reads):
    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.items: list[Any] = [None] * len(data)

    def __getitem__(self, row: int) -> Any:
        if self.items[row] is None:
            self.items[row] = self.data[row]
        return self.items[row]


class OpenedLate(Reads):
    """Nobody reads a row on a server."""

    opened: Any = None

    def __getitem__(self, row: int) -> Any:
        if self.opened is None:
            self.opened = [self.data[number] for number in range(len(self.data))]
        return self.opened[row]


class Augments(Reads):
    """Draws from a generator of its own."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.draws = np.random.default_rng(0)

    def __getitem__(self, row: int) -> Any:
        x, y = self.data[row]
        return x + float(self.draws.normal()), y


class Moved(Cached):
    """A row is kept, and moved anew each time that it is read."""

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + torch.randn(x.shape), y


class Seeded(Reads):
    """The noise of a row has the row's number for a seed."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.seeded: dict[int, Any] = {}

    def __getitem__(self, row: int) -> Any:
        x, y = self.data[row]
        if row not in self.seeded:
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(row))
            self.seeded[row] = x + noise + float(np.random.default_rng(row).normal())
        return self.seeded[row], y


class Noised(Reads):
    """The noise of a row is drawn when it is first read."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.noised: dict[int, Any] = {}

    def __getitem__(self, row: int) -> Any:
        x, y = self.data[row]
        if row not in self.noised:
            noise = torch.randn(x.shape)
            self.noised[row] = x + noise
        return self.noised[row], y


class Picked(Reads):
    """The shift of a row is drawn when it is first read."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.shifts: dict[int, Any] = {}

    def __getitem__(self, row: int) -> Any:
        x, y = self.data[row]
        return x + self.shifts.setdefault(row, np.random.uniform()), y


class Counts(Reads):
    """The weight of a row follows from how many were read here before."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.reads = 0

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        x, y = self.data[row]
        return x * (1 + self.reads % 3), y


class Numbers(Reads):
    """Kinds are numbered as they are met."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.number_of: dict[int, int] = {}

    def __getitem__(self, row: int) -> Any:
        x, y = self.data[row]
        if row not in self.number_of:
            self.number_of[row] = len(self.number_of)
        return x * (1 + self.number_of[row]), y


def told(kind: type[Reads], sync: dict[str, Any], place: Path) -> tuple[list[str], set[str]]:
    """The variables that differ, and why the bits are others."""

    def train(session: Session) -> None:
        net, data = made(session), kind(rows())
        for _ in range(3):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))

    return differences(train, sync, place)


def differences(
    train: Callable[[Session], None], sync: dict[str, Any], place: Path
) -> tuple[list[str], set[str]]:
    play = ThreadedCast(job(sync, workers={"min": 3, "max": 3}), train, artifacts=place).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    differs = [data["variable"] for data in play.reported("program.differs")]
    return differs, {finished.reproducible_why for finished in play.finished.values()}


@pytest.mark.parametrize("sync", [RING, SERVERS], ids=["ring", "servers"])
@pytest.mark.parametrize(
    "kind",
    [Cached, Asked, Tried, Defaulted, Slots, OpenedLate, Augments, Moved, Seeded],
    ids=lambda kind: kind.__name__,
)
def test_what_a_data_set_keeps_or_draws_is_no_difference(
    kind: type[Reads], sync: dict[str, Any], tmp_path: Path
) -> None:
    assert told(kind, sync, tmp_path) == ([], {""})


@pytest.mark.parametrize(("kind", "name"), [(Noised, "data.noised"), (Picked, "data.shifts")])
def test_what_is_drawn_for_a_row_and_kept_is_one(kind: type[Reads], name: str, tmp_path: Path) -> None:
    differs, whys = told(kind, RING, tmp_path)
    assert differs == [name]
    assert all(name in why for why in whys)


@pytest.mark.parametrize(
    ("kind", "name"), [(Counts, "data.reads"), (Numbers, "data.number_of")], ids=["counts", "numbers"]
)
def test_what_depends_on_the_order_of_reads_is_one(kind: type[Reads], name: str, tmp_path: Path) -> None:
    differs, whys = told(kind, RING, tmp_path)
    assert differs == [name]
    assert all(name in why for why in whys)


tracker = SimpleNamespace(
    init=lambda **_: SimpleNamespace(log=lambda _: None), log=lambda _: None, finish=lambda: None
)


def tracked(session: Session) -> None:
    """Tells a service what it sees, under a name that no other worker has."""
    net, data = made(session), rows()
    started, run_name = time.time(), f"run-{uuid.uuid4().hex}"
    tracker.init(project="digits", name=run_name)
    run = tracker.init(name=run_name)
    for epoch in range(3):
        began, seen = time.perf_counter(), 0
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
            seen += len(x)
        took = time.perf_counter() - began
        speed, left_s = seen / took, (2 - epoch) * took
        tracker.log({"epoch": epoch, "rows/s": speed})
        run.log({"left_s": left_s})
        print(f"{epoch} {speed:.1f} rows/s, {time.time() - started:.1f} s, {left_s:.1f} s left")
    tracker.finish()


def test_what_is_only_told_to_people_is_no_difference(tmp_path: Path) -> None:
    assert differences(tracked, RING, tmp_path) == ([], {""})
