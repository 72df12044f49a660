"""Parquet files read from the source or from a copy on each node: through kills and restarts each row counts once."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cast import Cast
from faults import FaultPlan
from test_group_faults import EPOCHS, ROWS, STEPS, TWO, register, rows, run_epochs
from test_group_restart import SAVED, rows_of, saving_job
from torch import Tensor
from torch.utils.data import Dataset

from ringleader.data import ParquetDataset
from ringleader.train import Session
from ringleader.train.local import run_local

FILES = 2
NODES = {"w1": 1, "w3": 1}
EVERYBODY = ("s0", "s1", "w0", "w1", "w2", "w3", "w4", "w5", "w6")


class Points(Dataset[tuple[Tensor, int]]):
    def __init__(self, path: str) -> None:
        self.rows = ParquetDataset(path)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        found = self.rows[row]
        return found["x"] + 0.05 * torch.randn(6), found["y"]


def train(session: Session) -> None:
    run_epochs(session, register(session), Points(session.params["path"]))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("source")
    x, y = rows().tensors
    for part in range(FILES):
        mine = slice(part * ROWS // FILES, (part + 1) * ROWS // FILES)
        columns = {"x": pa.array(x[mine].tolist(), pa.list_(pa.float32())), "y": y[mine].tolist()}
        pq.write_table(pa.table(columns), folder / f"{part}.parquet", row_group_size=20)
    return folder


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = saving_job(params={"path": str(source)})
    return run_local(spec, train, tmp_path_factory.mktemp("alone"))[0].digest


@pytest.mark.parametrize("sync", ["ring", TWO], ids=["ring", "two-servers"])
@pytest.mark.parametrize("distribution", ["sharded", "replicated"])
def test_each_row_is_settled_once_through_a_kill_a_resize_and_a_restart(
    distribution: str, sync: Any, source: Path, undisturbed: str, tmp_path: Path
) -> None:
    keys = {"params": {"path": str(source)}, "data": {"distribution": distribution}, "sync": sync}
    spec = saving_job(workers={"min": 1, "max": 3}, **keys)
    cues = FaultPlan().kill("w2", at_step=2).resize(at_step=5, workers_min=2, workers_max=2)
    for worker in EVERYBODY:
        cues = cues.kill(worker, at_step=10, once=tmp_path / SAVED)
    checkpoints = str(tmp_path / SAVED)
    first = Cast(spec, train, cues, tmp_path / "first", NODES, checkpoints=checkpoints).play()
    assert (first.outcome, first.worlds[0], first.worlds[-1]) == ("failed", 3, 2)
    second = Cast(
        spec, train, FaultPlan(), tmp_path / "second", NODES, attempt=2, checkpoints=checkpoints
    ).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert rows_of(first, second) == sorted(list(range(ROWS)) * EPOCHS)
    assert max(step for step, _ in second.values) == STEPS
    assert second.digest == undisturbed
    copied = [len(list(tmp_path.glob(f"second/copies/node-{n}/*.arrow"))) for n in (0, 1)]
    assert copied == ([FILES, FILES] if distribution == "replicated" else [0, 0])
