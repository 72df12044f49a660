"""Reading JPEGs of 224 × 224 pixels, shuffled: pictures a second, beside torch's own loader with the same decoder."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ringleader.bench.reading.data_files import pass_over, slices_of
from ringleader.data import ParquetDataset, decode_image
from ringleader.spec.data import Data
from ringleader.train.rows.slices import load

SIDE, BATCH, SHARDS = 224, 64, 4
PICTURES = (
    f"JPEGs of {SIDE} × {SIDE} pixels in row groups of 64, batches of {BATCH}, decoded in the training thread"
)


def write_pictures(path: Path, *, count: int) -> Path:
    """Write pictures with coarse and fine structure, as photographs have: `image`, JPEG of about 20 KB, and `id`."""
    drawn = np.random.default_rng(0)
    encoded = [_jpeg(drawn) for _ in range(count)]
    pq.write_table(pa.table({"image": encoded, "id": np.arange(count)}), path, row_group_size=64)
    return path


def ours(path: Path) -> Iterable[Any]:
    """A pass by blocks, of all shards."""
    dataset = ParquetDataset(path, decode={"image": decode_image})
    epoch = pass_over(dataset.files().block_rows, batch=BATCH, shards=SHARDS, data=Data(order="block"))
    return load(dataset, slices_of(epoch, range(SHARDS)), seed=0, collate=None)


def torchs(path: Path) -> Iterable[Any]:
    """A pass of torch's loader over the same bytes, all of them in memory."""
    return DataLoader(_InMemory(path), batch_size=BATCH, shuffle=True)


class _InMemory(Dataset[dict[str, Any]]):
    def __init__(self, path: Path) -> None:
        table = pq.read_table(path)
        self._encoded, self._ids = table["image"].to_pylist(), table["id"].to_pylist()

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: int) -> dict[str, Tensor | int]:
        return {"image": decode_image(self._encoded[row]), "id": self._ids[row]}


def _jpeg(drawn: np.random.Generator) -> bytes:
    coarse = torch.from_numpy(drawn.uniform(0, 255, (1, 3, 14, 14)))
    smooth = torch.nn.functional.interpolate(coarse, SIDE, mode="bicubic")[0].permute(1, 2, 0).numpy()
    pixels = np.clip(smooth + drawn.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=85)
    return out.getvalue()
