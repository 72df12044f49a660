"""An iterator that a data set goes on with when rows are read is named before a step goes by it, wherever it is held:
rows would depend on what the same worker has read before."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import epoch, network, rows, sgd
from test_carried import run
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, Subset, default_collate

from ringleader.train import Session
from ringleader.train.local import RecordedOutput

NOISE = [0.0, 0.1, 0.2, 0.4]
of_all = cycle(NOISE)


def falling() -> Iterator[float]:
    value = 1.0
    while True:
        value *= 0.9
        yield value


def drawn() -> Iterator[float]:
    """Nothing but its generator of random numbers says where it stands."""
    draw = torch.Generator().manual_seed(0)
    while True:
        yield float(torch.rand((), generator=draw))


class Rows:
    def __init__(self, noise: Any = None) -> None:
        self.rows = rows()
        self.noise = noise

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        x, y = self.rows[row]
        return x + self.value(row), y

    def value(self, row: int) -> Any:
        return next(self.noise)


class Numbered(Rows):
    def value(self, row: int) -> Any:
        return next(self.noise)[0] % 5


class Inside(Rows):
    def value(self, row: int) -> Any:
        return next(self.noise["all"][1])


class Named(Rows):
    def value(self, row: int) -> Any:
        return next(self.noise.of)


class Called(Rows):
    def value(self, row: int) -> Any:
        return self.noise(row)


class MadeLate(Rows):
    def value(self, row: int) -> Any:
        if self.noise is None:
            self.noise = cycle(NOISE)
        return next(self.noise)


class Slots:
    __slots__ = ("jitter", "rows")

    def __init__(self) -> None:
        self.rows, self.jitter = rows(), cycle(NOISE)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        x, y = self.rows[row]
        return x + next(self.jitter), y


class OfClass(Rows):
    steps = cycle(NOISE)

    def value(self, row: int) -> Any:
        return next(self.steps)


class Global(Rows):
    def value(self, row: int) -> Any:
        return next(of_all)


def closed_over() -> Callable[[int], float]:
    values = cycle(NOISE)
    return lambda row: next(values)


def nth(values: Iterator[float], row: int) -> float:
    return next(values)


HELD: dict[str, tuple[Callable[[], Any], str]] = {
    "cycle": (lambda: Rows(cycle(NOISE)), "data.noise"),
    "count": (lambda: Rows(count(0, 0.01)), "data.noise"),
    "chain": (lambda: Rows(chain(NOISE, [0.5] * 9999)), "data.noise"),
    "list_iterator": (lambda: Rows(iter(NOISE * 999)), "data.noise"),
    "generator": (lambda: Rows(falling()), "data.noise"),
    "generator_that_draws": (lambda: Rows(drawn()), "data.noise"),
    "callable_iterator": (lambda: Rows(iter(cycle(NOISE).__next__, 2.0)), "data.noise"),
    "enumerate": (lambda: Numbered(enumerate(cycle(NOISE))), "data.noise"),
    "zip": (lambda: Numbered(zip(count(), cycle(NOISE), strict=False)), "data.noise"),
    "container": (lambda: Inside({"all": [None, cycle(NOISE)]}), "data.noise.all[1]"),
    "partial": (lambda: Called(partial(nth, cycle(NOISE))), "data.noise[1]"),
    "closure": (lambda: Called(closed_over()), "data.noise.values"),
    "namespace": (lambda: Named(SimpleNamespace(of=cycle(NOISE))), "data.noise.of"),
    "made_late": (MadeLate, "data.noise"),
    "slots": (Slots, "data.jitter"),
    "class": (OfClass, "steps"),
    "global": (Global, "of_all"),
    "subset": (lambda: Subset(Rows(cycle(NOISE)), range(36)), "data.dataset.noise"),
    "concatenated": (lambda: ConcatDataset([rows(), Rows(cycle(NOISE))]), "data.datasets[1].noise"),
}


class Shown(Rows):
    """Counts its reads for a line in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = count()

    def __getitem__(self, row: int) -> Any:
        print(f"row {next(self.reads)}")
        return self.rows[row]


class MadeAnew(Rows):
    def value(self, row: int) -> Any:
        self.noise = iter(NOISE[row % 3 :])
        return next(self.noise)


class UsedUp(Rows):
    def __init__(self) -> None:
        super().__init__(iter(NOISE))
        self.values = list(self.noise)

    def value(self, row: int) -> Any:
        return self.values[row % len(self.values)]


class BetweenLoops(Rows):
    """Lines between loops go on with it, which all members run alike."""

    level = 0.0

    def resample(self) -> None:
        self.level = next(self.noise)

    def value(self, row: int) -> Any:
        return self.level


HARMLESS: dict[str, Callable[[], Any]] = {
    "shown": Shown,
    "made_anew": MadeAnew,
    "used_up": UsedUp,
    "between_loops": lambda: BetweenLoops(cycle(NOISE)),
}


def trained(session: Session, make: Callable[[], Any], *, processes: int = 0, collate: Any = None) -> None:
    net = session.model(network())
    sgd(session, net)
    data = make()
    for _ in range(2):
        if isinstance(data, BetweenLoops):
            data.resample()
        for x, y in session.batches(data, loader_workers=processes, collate=collate):
            session.step(F.cross_entropy(net(x), y))


def told(recorded: RecordedOutput) -> list[tuple[str, str]]:
    found = [data for kind, data in recorded.events if kind == "program.differs"]
    return [(data["variable"], data["line"].partition(":")[0]) for data in found]


@pytest.mark.parametrize("name", HELD)
def test_an_iterator_that_reads_go_on_with_is_named(name: str, tmp_path: Path) -> None:
    make, variable = HELD[name]
    finished, recorded = run(partial(trained, make=make), tmp_path)
    assert told(recorded)[0] == (variable, Path(__file__).name)
    assert (finished.reproducible, variable in finished.reproducible_why) == (False, True)


def test_one_is_named_before_the_first_step(tmp_path: Path) -> None:
    steps: list[int] = []

    def program(session: Session) -> None:
        net = session.model(network())
        sgd(session, net)
        for x, y in session.batches(Rows(cycle(NOISE))):
            steps.extend([session.global_step] if session._member.variables.found else [])
            session.step(F.cross_entropy(net(x), y))

    run(program, tmp_path)
    assert steps[0] == 0


@pytest.mark.parametrize("name", ["cycle", "made_late"])
def test_one_is_named_that_goes_on_in_a_process_that_loads(name: str, tmp_path: Path) -> None:
    make, variable = HELD[name]
    _, recorded = run(partial(trained, make=make, processes=1), tmp_path)
    assert {each[0].partition(".")[0] for each in told(recorded)} == {"data"}
    assert name == "made_late" or told(recorded) == [(variable, Path(__file__).name)]


def test_one_of_a_collate_is_named(tmp_path: Path) -> None:
    noise = cycle(NOISE)

    def noisy(found: list[Any]) -> Any:
        x, y = default_collate(found)
        return x + next(noise), y

    _, recorded = run(partial(trained, make=rows, collate=noisy), tmp_path)
    assert told(recorded) == [("noise", Path(__file__).name)]


def test_one_that_a_score_s_rows_go_on_with_is_named(tmp_path: Path) -> None:
    def program(session: Session) -> None:
        net = session.model(network())
        sgd(session, net)
        epoch(session, net, rows())
        noisy = Rows(cycle(NOISE))
        session.evaluate(noisy, lambda batch: {"hit": (net(batch[0]).argmax(1) == batch[1]).float()})

    _, recorded = run(program, tmp_path)
    assert told(recorded) == [("noisy.noise", Path(__file__).name)]


@pytest.mark.parametrize("name", HARMLESS)
def test_one_that_no_row_depends_on_is_not(name: str, tmp_path: Path) -> None:
    finished, recorded = run(partial(trained, make=HARMLESS[name]), tmp_path)
    assert (told(recorded), finished.reproducible_why) == ([], "")
