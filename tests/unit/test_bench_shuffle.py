"""The benchmark of shuffling by blocks: what it compares, and what it says where it cannot."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ringleader.bench.reading.shuffle import COURSES, Rows, shuffle_figures


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def missing(folder: Path) -> Rows:
    raise FileNotFoundError(folder / "rows.parquet")


def test_the_losses_of_both_orders_and_what_lies_between_them_are_told(tmp_path: Path) -> None:
    courses = {name: replace(COURSES[name], epochs=1) for name in ("digits", "digits-by-label")} | {
        "none": replace(COURSES["cifar"], rows=missing)
    }
    found = {figure.case: figure for figure in shuffle_figures(tmp_path, range(2), courses)}
    assert list(found) == [
        "shuffle-quality-digits",
        "shuffle-quality-digits-apart",
        "shuffle-quality-digits-by-label",
        "shuffle-quality-digits-by-label-apart",
        "shuffle-quality-none",
    ]
    losses = found["shuffle-quality-digits"]
    assert len(losses.ours) == len(losses.peers) == 2
    assert "blocks in a batch; row: " in losses.settings
    # Without a bar: blocks of one label each are what the measure of the shuffle warns of.
    assert found["shuffle-quality-digits-apart"].target is not None
    assert found["shuffle-quality-digits-by-label-apart"].target is None
    assert not found["shuffle-quality-none"].ours
    assert found["shuffle-quality-none"].settings.endswith("rows.parquet is not here")
