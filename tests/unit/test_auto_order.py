"""`data.order: auto`: files are shuffled by blocks in bounded windows, and nothing else changes its order."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import TensorDataset

from ringleader.data import FileDataset, Mix, ParquetDataset
from ringleader.data.sources.parquet import ParquetSource
from ringleader.spec import JobSpec
from ringleader.spec.data import Data
from ringleader.train.rows.blocks import WINDOWS_BYTES, order_for

JOB = {"name": "a", "entrypoint": "a:a", "batch": {"logical_shards": 4}}
SHUFFLED = Data(order="shuffled")


def spec(**changes: Any) -> JobSpec:
    return JobSpec.parse(JOB | changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "a.parquet", row_group_size=10)
    return tmp_path / "a.parquet"


class Large(ParquetSource):
    """Files with blocks of a size."""

    block_bytes = 1

    def decoded_bytes(self, columns: Any) -> int:
        return self.block_bytes * len(self.block_rows)


class Wrapping:
    """A data set of the program's own over files."""

    def __init__(self, files: FileDataset) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Any:
        return self.files[row]


def test_files_are_shuffled_by_blocks_where_the_job_file_names_no_order(path: Path) -> None:
    for files in (ParquetDataset(path), Wrapping(ParquetDataset(path))):
        assert order_for(spec(), files) == Data(order="block", window_blocks=16)
        assert order_for(spec(data={"window_blocks": 3}), files) == Data(order="block", window_blocks=3)
        for named in ("shuffled", "row", "block"):
            assert order_for(spec(data={"order": named}), files) == Data(order=named)


def test_everything_else_keeps_its_order(path: Path) -> None:
    files = ParquetDataset(path)
    kept = ParquetDataset(path, keep_decoded=True)
    for data in (TensorDataset(torch.arange(9)), range(9), Mix({"a": (files, 1), "b": (files, 1)}), kept):
        assert order_for(spec(data={"window_blocks": 3}), data) == SHUFFLED
    growing = spec(batch={"logical_shards": 4, "global_size": 8, "schedule": [[5, 16]]})
    assert order_for(growing, files) == SHUFFLED


@pytest.mark.parametrize(("share", "blocks"), [(64, 16), (63, 15), (4, 1), (1, 1)])
def test_the_windows_of_all_shards_have_a_bound(share: int, blocks: int, path: Path) -> None:
    source = Large(path)
    source.block_bytes = WINDOWS_BYTES // share
    assert order_for(spec(), FileDataset(source)).window_blocks == blocks


def test_the_cache_is_no_part_of_the_order(path: Path) -> None:
    sizes = [order_for(spec(), ParquetDataset(path, cache_bytes=n)).window_blocks for n in (1, 1 << 30)]
    assert np.unique(sizes).tolist() == [16]


def test_a_stored_job_keeps_the_order_that_it_had() -> None:
    """Versions before `auto` stored the order, or knew none: rows one by one."""
    assert spec().data.order == "auto"
    for stored, order in [
        (JOB, "shuffled"),
        (JOB | {"data": {"distribution": "replicated"}}, "shuffled"),
        (JOB | {"data": {"order": "shuffled"}}, "shuffled"),
        (JOB | {"data": {"order": "row"}}, "row"),
        (spec().model_dump(mode="json"), "auto"),
    ]:
        assert JobSpec.parse(stored, stored=True).data.order == order
        assert JobSpec.stored(stored).data.order == order
    hosted = {"name": "a", "entrypoint": "a.py", "working_dir": ".", "framework": "torchrun"}
    assert JobSpec.parse(hosted | {"data": {"order": "shuffled"}}, stored=True).hosted
