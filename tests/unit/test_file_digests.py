"""Files that change between two attempts of a job are refused by name; the same ones, wherever they lie, are not."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from faults import FaultPlan
from test_leaving import RING, job, worker
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset

from ringleader.data import FileDataset, ParquetDataset
from ringleader.data.sources.parquet import ParquetSource
from ringleader.data.unreadable import FilesChanged
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.rows.file_digests import FileDigests

torch.set_num_threads(1)


def write(path: Path, first: float = 0.0, rows: int = 72) -> Path:
    values = pa.array([[first + row, 1.0] for row in range(rows)], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"x": values, "y": [row % 3 for row in range(rows)]}), path, row_group_size=24)
    return path


class Training:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, session: Session) -> None:
        net = session.model(nn.utils.skip_init(nn.Linear, 2, 3))
        for parameter in net.parameters():
            nn.init.zeros_(parameter)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.001))
        data = ParquetDataset(self.path)
        for _ in range(2):
            for batch in session.batches(data):
                session.step(F.cross_entropy(net(batch["x"]), batch["y"]))


@pytest.mark.parametrize("at", [3, 9])
@pytest.mark.parametrize("changed", [True, False])
def test_a_resumed_job_is_refused_files_that_have_changed(changed: bool, at: int, tmp_path: Path) -> None:
    path, saved = write(tmp_path / "a.parquet"), str(tmp_path / "saved")
    spec = job(RING, checkpoint={"every_steps": 3})
    faults = FaultPlan().pause(at_step=at)
    for number in range(3):
        faults = faults.linger(worker(RING, number), since_step=at, for_generation=2)
    first = ThreadedCast(spec, Training(path), faults, artifacts=tmp_path / "1", checkpoints=saved).play()
    assert first.outcome == "paused", (first.reason, first.message)
    write(path, first=1.0 if changed else 0.0)
    again = ThreadedCast(spec, Training(path), artifacts=tmp_path / "2", checkpoints=saved, attempt=2).play()
    if changed:
        assert (again.outcome, again.reason) == ("failed", "entrypoint_raised")
        assert "the files of the ParquetDataset that this loop reads have changed" in again.message
    else:
        assert again.outcome == "succeeded", (again.reason, again.message)


def test_each_loop_may_have_files_of_its_own(tmp_path: Path) -> None:
    one, two = (ParquetDataset(write(tmp_path / f"{k}.parquet", first=k)) for k in range(2))
    both: Any = ConcatDataset([one, two])
    digests = FileDigests()
    for number, dataset in enumerate([one, one, two, both, [1, 2], one]):
        digests.check(number, dataset)
        digests.check(number, dataset)
    later = FileDigests()
    later.restore(digests.state())
    later.check(1, one)
    later.check(4, [3])
    for number, dataset in ((1, two), (3, one), (4, one), (5, [1])):
        with pytest.raises(FilesChanged):
            later.check(number, dataset)
    later.check(6, two)


class CountedSource(ParquetSource):
    """Counts how often its digest is asked for."""

    asked = 0

    @property
    def digest(self) -> str:
        self.asked += 1
        return super().digest


@pytest.mark.parametrize("by_steps", [False, True], ids=["batches", "steps"])
def test_a_loop_reads_digests_before_its_first_step_alone(by_steps: bool, tmp_path: Path) -> None:
    source, asked = CountedSource(write(tmp_path / "a.parquet")), []

    def train(session: Session) -> None:
        net = session.model(nn.Linear(2, 3))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.001))
        data = FileDataset(source)
        steps: Any = session.steps(data) if by_steps else [session.batches(data)]
        for step in steps:
            for batch in step:
                asked.append(source.asked)
                session.step(F.cross_entropy(net(batch["x"]), batch["y"]))

    finished, _ = run_local(job(RING), train, tmp_path)
    assert finished.steps > 1
    assert len(set(asked)) == 1
