"""Files that are larger than the cache and shuffled row by row are decoded again and again: the job is warned of it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from test_leaving import RING, job
from torch import nn
from torch.nn import functional as F

from ringleader.data import FileDataset, ParquetDataset
from ringleader.data.decoding import decoded_per_row
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)


def write(folder: Path) -> Path:
    table = pa.table({"x": [float(row) for row in range(240)], "y": [row % 3 for row in range(240)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=40, use_dictionary=False)
    return folder / "a.parquet"


def warnings(folder: Path, cache_bytes: int, shuffle: bool = True, **data: Any) -> list[str]:
    path = write(folder)

    def train(session: Session) -> None:
        net = session.model(nn.Linear(1, 3))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.0001))
        for batch in session.batches(ParquetDataset(path, cache_bytes=cache_bytes), shuffle=shuffle):
            session.step(F.cross_entropy(net(batch["x"][:, None].float()), batch["y"]))

    _, sink = run_local(job(RING, data=data), train, folder / "out")
    return [
        told["message"] for kind, told in sink.events if kind == "warning" and told["about"] == "data_order"
    ]


def test_a_shuffled_set_larger_than_the_cache_is_named_once(tmp_path: Path) -> None:
    (told,) = warnings(tmp_path, cache_bytes=100, order="shuffled")
    assert "decodes about 33 rows for each one that it uses" in told
    (told,) = warnings(tmp_path, cache_bytes=100, order="row")
    assert "are shuffled one by one" in told


@pytest.mark.parametrize(
    "asked",
    [
        {"cache_bytes": 1 << 20, "order": "shuffled"},
        {"cache_bytes": 100, "order": "block"},
        {"cache_bytes": 100},
        {"cache_bytes": 100, "order": "shuffled", "shuffle": False},
    ],
    ids=str,
)
def test_what_is_decoded_once_is_not_warned_of(asked: Any, tmp_path: Path) -> None:
    assert warnings(tmp_path, **asked) == []


def test_the_columns_that_are_read_count(tmp_path: Path) -> None:
    path, size = write(tmp_path), 240 * 8
    whole = ParquetDataset(path, cache_bytes=size + 400)
    one = ParquetDataset(path, columns=["x"], cache_bytes=size + 400)
    assert whole.decoded_per_row(3) > 2
    assert one.decoded_per_row(3) == 1.0
    assert ParquetDataset(path, cache_bytes=1, keep_decoded=True).decoded_per_row(3) == 1.0
    assert FileDataset(whole.files(), cache_bytes=1).decoded_per_row(3) > whole.decoded_per_row(3)


@pytest.mark.parametrize(
    ("sizes", "again"),
    [
        # One row alone costs its block, all rows at once cost each block once.
        ({"rows": 1000, "blocks": 10, "size_bytes": 10**9, "cache_bytes": 0, "at_once": 1}, 100.0),
        ({"rows": 1000, "blocks": 10, "size_bytes": 10**9, "cache_bytes": 0, "at_once": 1000}, 1.0),
        ({"rows": 1000, "blocks": 10, "size_bytes": 100, "cache_bytes": 50, "at_once": 1}, 50.0),
        ({"rows": 1000, "blocks": 10, "size_bytes": 100, "cache_bytes": 100, "at_once": 1}, 1.0),
    ],
)
def test_what_is_decoded_follows_from_blocks_and_cache(sizes: Any, again: float) -> None:
    assert decoded_per_row(**sizes) == pytest.approx(again)
