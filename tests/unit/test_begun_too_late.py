"""A step that begins in a generation that is over already: who sends at its very beginning finds that out there."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import COPIES, RING, ROUNDS, SERVERS, job, made
from threaded_cast import ThreadedCast, ThreadPrompter
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from waiting import wait_for

from ringleader.comm.buckets import Buckets
from ringleader.comm.communicator import Communicator
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
ROWS = 25
"""The third batch of each loop has one row: only the last worker has a slice in it."""


def train(session: Session) -> None:
    net = made(session)
    numbers = torch.arange(ROWS * 5, dtype=torch.float32).reshape(ROWS, 5)
    data = TensorDataset((numbers * 7 % 11) / 11, torch.arange(ROWS) % 3)
    net[1].eval()  # one row has no variance
    for _ in range(4):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize(
    ("sync", "late", "lost"),
    [(SERVERS, "s1", "w2"), (COPIES, "s1", "w2"), (RING, "w0", "w1"), (ROUNDS, "w0", "w1")],
    ids=["servers", "copies", "ring", "local_sgd"],
)
def test_who_has_no_slice_and_begins_behind_a_loss_goes_on_in_the_next_generation(
    sync: dict[str, Any], late: str, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins as many exchanges as there are buckets; the first one's end makes the others impossible."""
    submit, progress, small = Communicator._submit, ThreadPrompter.progress, Buckets.__init__
    begins, found = threading.Event(), threading.Event()

    def submitted(self: Communicator, *what: Any) -> Any:
        ticket = submit(self, *what)
        if threading.current_thread().name == late and begins.is_set():
            wait_for("its end", lambda: self._error is not None or not self._unfinished)
            if self._error is not None:
                begins.clear()
                found.set()
        return ticket

    def progressed(self: ThreadPrompter, *, phase: str, step: int, **more: Any) -> None:
        progress(self, phase=phase, step=step, **more)
        if (self._me, phase, step) == (late, "between", 2) and not found.is_set():
            wait_for("the loss to be told", self.interrupted)
            begins.set()

    def in_many(self: Buckets, *what: Any, **how: Any) -> None:
        small(self, *what, **how | {"capacity_bytes": 1, "alone_bytes": 1})

    monkeypatch.setattr(Communicator, "_submit", submitted)
    monkeypatch.setattr(ThreadPrompter, "progress", progressed)
    monkeypatch.setattr(Buckets, "__init__", in_many)
    alone, _ = run_local(job(sync), train, tmp_path / "alone")
    faults = FaultPlan().kill(lost, at_step=2, phase="between")
    play = ThreadedCast(job(sync), train, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert found.is_set()
    assert play.digest == alone.digest
