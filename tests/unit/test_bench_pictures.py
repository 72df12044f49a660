"""The benchmark of JPEGs: both sides read every picture once, and the same pixels."""

from pathlib import Path

import torch

from ringleader.bench.reading.pictures import ours, torchs, write_pictures


def test_both_sides_give_each_picture_once_with_the_same_pixels(tmp_path: Path) -> None:
    path = write_pictures(tmp_path / "pictures.parquet", count=70)
    found = []
    for side in (ours, torchs):
        batches = list(side(path))
        order = torch.cat([batch["id"] for batch in batches]).argsort()
        assert order.tolist() != list(range(70))
        found.append((torch.cat([batch["id"] for batch in batches])[order], batches, order))
    assert found[0][0].tolist() == found[1][0].tolist() == list(range(70))
    pixels = [torch.cat([batch["image"] for batch in batches])[order] for _, batches, order in found]
    assert pixels[0].shape == (70, 3, 224, 224)
    assert torch.equal(*pixels)
