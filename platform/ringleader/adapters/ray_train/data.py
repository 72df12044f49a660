"""Loaders and shards of data sets as functions of Ray Train see them: loops over them that train are the session's."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from ringleader.adapters.ray_train.loop_registrations import CLIPS
from ringleader.adapters.ray_train.torch_loops import TorchLoops
from ringleader.adapters.session_loop import PassRows, refuse
from ringleader.data import FileDataset, ParquetDataset
from ringleader.data.sources.kinds import open_source

Cast = Callable[[Any], Any]


class AdoptedBatches:
    """One data set in batches. A loop that trains is the session's; any other goes over all rows on every worker."""

    def __init__(self, loops: TorchLoops, rows: PassRows, cast: Cast | None = None) -> None:
        self._loops = loops
        self._rows = rows
        self._cast = cast

    def __iter__(self) -> Iterator[Any]:
        if self._loops.trains():
            batches = self._loops.turns(self._rows)
        else:
            batches = self._rows.whole(self._loops.session, self._rows.batch_size or 1)
        return batches if self._cast is None else map(self._cast, batches)


class AdoptedLoader(AdoptedBatches):
    """A loader of the program.

    Attributes:
        dataset, batch_size, collate_fn, num_workers, drop_last: the loader's.
    """

    def __init__(self, loops: TorchLoops, loader: DataLoader[Any]) -> None:
        super().__init__(loops, PassRows.of_loader(loader, CLIPS))
        self.dataset, self.batch_size, self.collate_fn = loader.dataset, loader.batch_size, loader.collate_fn
        self.num_workers, self.drop_last = loader.num_workers, loader.drop_last

    @property
    def sampler(self) -> "AdoptedLoader":
        """Itself, for `sampler.set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the order of rows follows from the job's seed and the number of the loop."""

    def __len__(self) -> int:
        """Batches: steps, where it trains."""
        whole, rest = divmod(len(self._rows.dataset), self._rows.batch_size or 1)
        return whole if self.drop_last else whole + bool(rest)


class DatasetShard:
    """A data set as `get_dataset_shard` gives it: files that the job file names, of which Ray Data reads nothing."""

    def __init__(self, loops: TorchLoops, name: str, uri: str) -> None:
        self._loops = loops
        self._name = name
        kind, source = open_source(uri)
        self._dataset = ParquetDataset(uri) if kind == "parquet" else FileDataset(source)

    def iter_torch_batches(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        device: Any = "auto",
        prefetch_batches: int = 1,
        local_shuffle_seed: int | None = None,
        **others: Any,
    ) -> AdoptedBatches:
        """Batches as dicts of tensors, in the order of the rows, or shuffled as the job file says where a buffer to
        shuffle in is asked for. Blocks are read ahead whatever is said of that."""
        if unknown := [name for name, value in others.items() if value]:
            refuse(
                f"iter_torch_batches({', '.join(unknown)}=…)",
                "Change the batches in the loop, or write the rows as the loop needs them.",
            )
        rows = PassRows(
            self._dataset,
            shuffle=bool(local_shuffle_buffer_size),
            drop_last=drop_last,
            batch_size=batch_size or len(self._dataset),
            clips=CLIPS,
        )
        return AdoptedBatches(self._loops, rows, None if dtypes is None else _to(dtypes))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"{name} of the data set {self._name!r}", "Call iter_torch_batches, which is served.")


def _to(dtypes: Any) -> Cast:
    """Casts of columns: one type for all, or by name."""

    def cast(batch: dict[str, Any]) -> dict[str, Any]:
        wanted = dtypes if isinstance(dtypes, dict) else dict.fromkeys(batch, dtypes)
        return {
            name: value.to(wanted[name]) if name in wanted and isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }

    return cast
