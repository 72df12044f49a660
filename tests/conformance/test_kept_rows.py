"""What a data set's own methods keep of rows that they have read differs between workers, and no weight depends on it.
What lines between loops set in a data set is compared."""

import multiprocessing as mp
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cast import Cast
from programs import epoch, network, rows, sgd
from test_check_beside import TWO, job

from ringleader.program_text.dataset_caches import kept_rows
from ringleader.train import Session

EPOCHS = 3


class History:
    """A class beside the data sets that adds to an attribute of the same name."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def note(self, number: int) -> int:
        self.kept.append(number)
        return len(self.kept)


class Rows:
    """Rows times their level. What it keeps, it keeps as they are on the disk."""

    def __init__(self) -> None:
        self.rows = rows()
        self.kept: dict[int, Any] = {}
        self.level = 1
        self.indices = list(range(len(self.rows)))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, row: int) -> Any:
        if row not in self.kept:
            self.kept[row] = self.rows[self.indices[row]]
        x, y = self.kept[row]
        return x * self.level, y


class Early(Rows):
    def __getitem__(self, row: int) -> Any:
        if row in self.kept:
            return self.kept[row]
        item = self.rows[row]
        self.kept[row] = item
        return item


class Otherwise(Rows):
    def __getitem__(self, row: int) -> Any:
        if row in self.kept:
            item = self.kept[row]
        else:
            item = self.rows[row]
            self.kept[row] = item
        return item


class Loading(Rows):
    def __getitem__(self, row: int) -> Any:
        if row not in self.kept:
            self.load(row)
        return self.kept[row]

    def load(self, row: int) -> None:
        self.kept[row] = self.rows[row]


class Marking(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.there = [False] * len(self.rows)

    def __getitem__(self, row: int) -> Any:
        if not self.there[row]:
            self.kept[row] = self.rows[row]
            self.there[row] = True
        return self.kept[row]


class Batched(Rows):
    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])[0]

    def __getitems__(self, wanted: Sequence[int]) -> list[Any]:
        missing = [row for row in wanted if row not in self.kept]
        self.kept.update({row: self.rows[row] for row in missing})
        return [self.kept[row] for row in wanted]


class Steered(Rows):
    """Lines between loops set what it keeps of a row."""

    def steer(self, row: int, value: Any) -> None:
        self.kept[row] = value


class Smoothed(Rows):
    """A row is a mean with what it was when it was read before."""

    def __getitem__(self, row: int) -> Any:
        x, y = self.rows[row]
        before = self.kept.get(row, x)
        self.kept[row] = (before + x) / 2
        return self.kept[row], y


class Seen(Rows):
    """A row is another one when it is read again."""

    def __getitem__(self, row: int) -> Any:
        x, y = self.rows[row]
        factor = 1 if row in self.kept else 2
        self.kept[row] = True
        return x * factor, y


class Emptied(Rows):
    """What it keeps is dropped between loops."""

    def empty(self) -> None:
        self.kept = {}


def trained(session: Session, kind: Callable[[], Any]) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    data, history = kind(), History()
    for number in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 / history.note(number)
        epoch(session, net, data)
        if isinstance(data, Emptied) and number == 1:
            data.empty()


def level_by_worker(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    data = Rows()
    for _ in range(EPOCHS):
        data.level = 1 + int(mp.current_process().name == "w1")
        epoch(session, net, data)


def indices_by_worker(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    data = Rows()
    for _ in range(EPOCHS):
        if mp.current_process().name == "w1":
            data.indices = data.indices[::-1]
        epoch(session, net, data)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the weights that one process makes."""
    place = tmp_path_factory.mktemp("alone")
    return (
        Cast(job("test_kept_rows:trained", place), partial(trained, kind=Rows), artifacts=place).play().digest
    )


@pytest.mark.parametrize("kind", [Rows, Batched, Emptied], ids=lambda kind: kind.__name__)
def test_what_a_data_set_keeps_of_rows_that_it_has_read_is_no_difference(
    kind: Callable[[], Any], digest: str, tmp_path: Path
) -> None:
    spec = job("test_kept_rows:trained", tmp_path, **TWO)
    told = Cast(spec, partial(trained, kind=kind), artifacts=tmp_path).play()
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert told.reported("program.differs") == []
    assert {(end.reproducible, end.reproducible_why) for end in told.finished.values()} == {(True, "")}
    assert told.digest == digest


@pytest.mark.parametrize("kind", [Early, Otherwise, Loading, Marking], ids=lambda kind: kind.__name__)
def test_rows_are_kept_in_whichever_way_their_method_is_written(kind: type) -> None:
    assert "kept" in kept_rows(kind)


@pytest.mark.parametrize("kind", [Steered, Smoothed, Seen], ids=lambda kind: kind.__name__)
def test_what_depends_on_earlier_reads_or_on_other_lines_is_no_kept_row(kind: type) -> None:
    assert "kept" not in kept_rows(kind)


@pytest.mark.parametrize(
    ("function", "name"), [(level_by_worker, "data.level"), (indices_by_worker, "data.indices")]
)
def test_what_lines_between_loops_set_in_a_data_set_is_one(
    function: Callable[[Session], None], name: str, tmp_path: Path
) -> None:
    spec = job(f"test_kept_rows:{function.__name__}", tmp_path, **TWO)
    told = Cast(spec, function, artifacts=tmp_path).play()
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert {data["variable"] for data in told.reported("program.differs")} == {name}
    assert {(name in end.reproducible_why, end.reproducible) for end in told.finished.values()} == {
        (True, False)
    }
