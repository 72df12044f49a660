"""Loading slices: rows to batches, with random streams keyed by what is loaded; and a pass over them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data import default_collate as torch_collate

from ringleader.data import FileDataset
from ringleader.data import collate as stacked
from ringleader.errors import DatasetUnsupported, StepMisuse
from ringleader.train.device.host_copy import sent
from ringleader.train.rows.blocks import ReadAhead
from ringleader.train.rows.order.block_order import Window
from ringleader.train.rows.random_streams import own_generators, seed_all, seed_own
from ringleader.train.rows.read_iterators import ReadIterators, Told

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of one shard of one batch, and the name of its random stream.

    Attributes:
        stream: the slice's name, e.g. ("step", 17, 3), which does not depend on who computes it.
        shard: its place in the exchange.
        rows: (n,) int64.
        windows: the blocks of files that the rows are in, where they are shuffled by blocks.
    """

    stream: tuple[int | str, ...]
    shard: int
    rows: np.ndarray
    windows: tuple[Window, ...] = ()

    @property
    def step(self) -> int:
        """The committed steps before the batch of a slice that is trained on."""
        return int(self.stream[1])


class SliceDataset:
    """A dataset whose index is a slice, the unit of loading.

    Args:
        iterators: watches those that the dataset holds.
    """

    def __init__(
        self, dataset: Any, seed: int, collate: Collate, iterators: ReadIterators | None = None
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate = collate
        self._iterators = iterators or ReadIterators(dataset, collate)
        self._ahead = ReadAhead(dataset)

    def __getitem__(self, piece: Slice) -> Any:
        seed_all(self._seed, "load", *piece.stream)
        own = own_generators((self._dataset, self._collate))  # each time: it may make them when it needs them
        seed_own(own, self._seed, "load", *piece.stream)
        if piece.windows:
            self._ahead.enter(piece.step, piece.windows)
        with self._iterators.watched():
            return self._read([int(row) for row in piece.rows])

    def _read(self, rows: list[int]) -> Any:
        if self._collate is torch_collate and isinstance(self._dataset, FileDataset):
            return FileDataset.batch(self._dataset, rows)
        # As torch's own loader does: a dataset may load several rows at once.
        fetch = getattr(self._dataset, "__getitems__", None)
        found = fetch(rows) if fetch else [self._dataset[row] for row in rows]
        return stacked(found) if self._collate is torch_collate else self._collate(found)


def check_dataset(dataset: Any) -> None:
    """Check that a dataset has a length and random access.

    Raises:
        DatasetUnsupported: (a TypeError) naming what is missing.
    """
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        raise DatasetUnsupported(
            f"{type(dataset).__name__} is not a map-style dataset: exactly-once rows need len(dataset) and "
            f"dataset[row].",
            hint="A stream has no positions. Read the files below it with ringleader.data (ParquetDataset, or "
            "FileDataset over Arrow, JSONL, WebDataset tars or MDS), or write its rows to Parquet first.",
        )


def check_switch(name: str, given: Any) -> None:
    """Check that an argument is on or off. Raises StepMisuse: `"no"` would be taken for yes."""
    if not isinstance(given, (bool, np.bool_)):
        raise StepMisuse(
            f"session.batches got {name}={given!r}, a {type(given).__name__}.", hint="Give True or False."
        )


def check_loader_workers(given: Any) -> None:
    """Check a number of processes. Raises StepMisuse."""
    if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or given < 0:
        raise StepMisuse(
            f"the session got loader_workers={given!r}.", hint="Give a whole number of processes, 0 or more."
        )


class Prefetched:
    """An iterator that can take its next value early: an error in doing so is raised where the value is due."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values
        self._taken: list[Any] = []
        self._error: Exception | None = None

    def take(self) -> None:
        """Load the next value now, if there is one, while others are waited for."""
        if self._taken or self._error is not None:
            return
        try:
            self._taken.append(next(self._values))
        except Exception as error:  # also the end: the one who asks for the value gets it
            self._error = error

    def __iter__(self) -> "Prefetched":
        return self

    def __next__(self) -> Any:
        if self._taken:
            return self._taken.pop()
        if self._error is not None:
            raise self._error
        return next(self._values)


class DatasetPass(Iterator[Any]):
    """The iterator that `session.batches` returns. A loop over it holds its turns itself, so they end with the loop, by
    `break` too, whatever else holds this: a progress bar, a variable.

    Args:
        turns: makes the turns of one pass.
    """

    def __init__(self, turns: Callable[[], Iterator[Any]]) -> None:
        self._make = turns
        self._turns: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self._make() if self._turns is None else self._turns

    def __next__(self) -> Any:
        if self._turns is None:
            self._turns = self._make()
        return next(self._turns)


def load(
    dataset: Any, pieces: Iterable[Slice], *, seed: int, collate: Collate | None, told: Told | None = None
) -> Iterator[Any]:
    """The batches of `pieces` in order, on the CPU, each loaded when it is asked for.

    Args:
        told: hears of iterators in the dataset that go on.
    """
    iterators = ReadIterators(dataset, collate)
    rows = SliceDataset(dataset, seed, collate or torch_collate, iterators)
    for piece in pieces:
        batch = rows[piece]
        if told is not None:
            iterators.tell(told)
        yield batch


def to_device(batch: Any, device: torch.device) -> Any:
    """Tensors of a nested batch on `device`; anything else as it is."""
    if isinstance(batch, torch.Tensor):
        return sent(batch, device)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        # A namedtuple takes its fields one by one, and no iterable of them.
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
