"""Processes that load: they outlive loops and generations, and end with their worker, however it ends."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import default_collate as torch_collate

from ringleader.train.rows.dataset_likeness import likeness
from ringleader.train.rows.loader_process import detach
from ringleader.train.rows.read_iterators import ReadIterators, Told
from ringleader.train.rows.row_comparison import Differ, RowComparison
from ringleader.train.rows.slices import Collate, Slice, SliceDataset, load

PREFETCH_STEPS = 2
KEPT = 3
"""The most sets of processes: those that train, and those that evaluate on two other datasets."""


class LoaderProcesses:
    """The loading processes of one session. Loads in the calling thread where no processes are asked for.

    Args:
        told: hears of iterators in a dataset that go on as it is read.
        differ: hears of a dataset whose rows differ where they are loaded.
    """

    def __init__(
        self, seed: int, told: Told | None = None, differ: Differ = lambda dataset, collate: None
    ) -> None:
        self._seed = seed
        self._told = told
        self._differ = differ
        self._process_sets: list[_ProcessSet] = []

    def load(
        self,
        call: Hashable,
        dataset: Any,
        pieces: Iterator[Slice],
        collate: Collate | None,
        loader_workers: int,
        *,
        may_differ: bool = False,
    ) -> Iterator[Any]:
        """The batches of `pieces` in order, on the CPU; prefetched by `loader_workers` processes, if there is something
        to load. Slices requested earlier of the same processes are dropped, and not loaded any more.

        Args:
            call: names the loop or evaluation that they are for. Within one of them the dataset does not change.
            may_differ: unless something of training is in reach of the rows, which are compared then.
        """
        if loader_workers == 0:
            return load(dataset, pieces, seed=self._seed, collate=collate, told=self._told)
        first = next(pieces, None)
        if first is None:
            return iter(())
        pieces = chain([first], pieces)
        process_set = self._process_set(call, dataset, collate, loader_workers)
        differ = partial(self._differ, dataset, collate) if may_differ else None
        try:
            return process_set.load(pieces, differ)
        except RuntimeError:  # one of its processes has died since
            process_set.give_up()
            return self._process_set(call, dataset, collate, loader_workers).load(pieces, differ)

    def close(self) -> None:
        """End the processes; idempotent."""
        while self._process_sets:
            self._process_sets.pop().close()

    def _process_set(
        self, call: Hashable, dataset: Any, collate: Collate | None, count: int
    ) -> "_ProcessSet":
        """Processes that hold the dataset as it is now; the last used ones stay."""
        for process_set in [process_set for process_set in self._process_sets if process_set.broken]:
            self._end(process_set)
        now = [
            c for c in self._process_sets if c.call == call and c.holds(dataset, collate) and c.count == count
        ]
        look = None if now else likeness(dataset, collate)
        # None equals no other: what cannot be read may have changed.
        same = now or [
            c for c in self._process_sets if look is not None and (c.look, c.count) == (look, count)
        ]
        if same:
            # To the end: the first of them are those that were not used for longest.
            self._process_sets.remove(same[0])
            self._process_sets.append(same[0])
        else:
            for process_set in [
                process_set for process_set in self._process_sets if process_set.holds(dataset, collate)
            ]:
                self._end(process_set)  # it loads what the dataset was
            if len(self._process_sets) == KEPT:
                self._end(self._process_sets[0])
            self._process_sets.append(_ProcessSet(dataset, collate, self._seed, count, look, told=self._told))
        self._process_sets[-1].call = call
        return self._process_sets[-1]

    def _end(self, process_set: "_ProcessSet") -> None:
        self._process_sets.remove(process_set)
        process_set.close()


class _ProcessSet:
    """Some processes with one dataset; they load one run of slices after the other, numbered.

    Attributes:
        look: the dataset's likeness when they started; None: changes since then cannot be seen.
        call: the session call that they loaded for last.
        broken: whether one of them has died, or raised.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate | None,
        seed: int,
        count: int,
        look: bytes | None,
        *,
        told: Told | None,
    ) -> None:
        self.look = look
        self.count = count
        self.call: Hashable = None
        self.broken = False
        self._of = dataset, collate
        self._number = 0
        # Shared with the processes: they drop what they still have of an earlier run without a message.
        self._newest = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._asked = _Asked()
        self._told = told
        self._iterators = ReadIterators(dataset, collate, shared=True)
        self._rows = SliceDataset(dataset, seed, collate or torch_collate, self._iterators)
        rows = _Numbered(self._rows, self._newest)
        self._loader: DataLoader[Any] | None = DataLoader(
            rows,  # type: ignore[arg-type]
            # A slice is a batch already.
            batch_size=None,
            sampler=self._asked,
            num_workers=count,
            prefetch_factor=PREFETCH_STEPS,
            persistent_workers=True,
            worker_init_fn=detach,
            generator=torch.Generator(),  # else each run draws a number of the program's
        )
        self._batches: Iterator[Any] | None = None

    def holds(self, dataset: Any, collate: Collate | None) -> bool:
        return self._of[0] is dataset and self._of[1] is collate

    def load(self, pieces: Iterator[Slice], differ: Callable[[], None] | None) -> Iterator[Any]:
        assert self._loader is not None, "its processes have ended"
        comparison = None
        if differ is not None:
            comparison = RowComparison(self._rows.__getitem__, differ, stale=self._number > 0)
            pieces = comparison.asked(pieces)
        self._number += 1
        self._newest.fill_(self._number)
        number = self._number
        self._asked.ask((number, piece) for piece in pieces)
        self._batches = iter(self._loader)  # waits for slices that are being loaded, and drops them
        return self._run(number, comparison)

    def give_up(self) -> None:
        """Use it no more: a process of it is lost."""
        self.broken = True

    def close(self) -> None:
        self._number += 1
        self._newest.fill_(self._number)
        self._batches = self._loader = None  # nobody else holds them: they end their processes

    def _run(self, number: int, comparison: RowComparison | None) -> Iterator[Any]:
        while number == self._number and self._batches is not None:
            try:
                batch = next(self._batches)
            except StopIteration:
                return
            except BaseException:
                self.broken = True
                raise
            if self._told is not None:
                self._iterators.tell(self._told)
            if comparison is not None:
                if self._iterators.gone_on:  # it gives other rows whenever it is read, and has been named
                    comparison.end()
                comparison.compare(batch)
            yield batch


class _Asked:
    """The slices of the newest run, as a DataLoader's sampler."""

    def __init__(self) -> None:
        self._pieces: Iterator[tuple[int, Slice]] = iter(())

    def ask(self, pieces: Iterator[tuple[int, Slice]]) -> None:
        """Begin a run."""
        self._pieces = pieces

    def __iter__(self) -> Iterator[tuple[int, Slice]]:
        return self._pieces


class _Numbered:
    """A loading process's dataset: rows by the number of a run and a slice. It loads nothing of a run that is over."""

    def __init__(self, rows: SliceDataset, newest: torch.Tensor) -> None:
        self._rows = rows
        self._newest = newest

    def __getitem__(self, asked: tuple[int, Slice]) -> Any:
        number, piece = asked
        return self._rows[piece] if number == int(self._newest) else None
