"""A program that ends its own process, on a real Ray cluster: it is known how it ended, where, and what it printed."""

from pathlib import Path

import pytest
from integration.runtime_job import start, write_training

from ringleader.wire.package import pack

ENDS = """
import ctypes, os, sys, threading, time
import torch
from torch.utils.data import TensorDataset

def train(session):
    net = session.model(torch.nn.Linear(8, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    rows = TensorDataset(torch.ones(64, 8), torch.ones(64))
    for epoch in range(4):
        for x, y in session.batches(rows):
            session.step(((net(x).squeeze(-1) - y) ** 2).mean())
    print("LAST WORDS")
    print("begun", end="")
    how = session.params["how"]
    if how == "raise":
        raise ZeroDivisionError("at last")
    if how == "leave":
        sys.exit(4)
    if how == "thread":
        threading.Thread(target=lambda: os._exit(3)).start()
        time.sleep(600)
    if how == "exit":
        os._exit(3)
    ctypes.string_at(0)
"""


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("exit", "died (exit code 3)"),
        ("thread", "died (exit code 3)"),
        ("crash", "died (SIGSEGV)"),
        ("raise", None),
        ("leave", None),
    ],
)
def test_how_and_where_a_program_ended_its_own_process_is_told(
    cluster, home, ingest, tmp_path: Path, how: str, cause: str | None
):
    write_training(tmp_path / "ends", ENDS)
    package = pack(tmp_path / "ends")
    settings = {"workers": {"min": 1, "max": 1}, "checkpoint": {"every_steps": None}}
    run = start(cluster, home, ingest, package, f"ends-{how}", params={"how": how}, **settings)
    outcome = run.outcome()
    assert outcome["outcome"] == "failed", outcome
    causes = {event["cause"] for event in ingest.events("worker.lost")}
    assert causes == ({cause} if cause else set()), causes
    if how in ("exit", "thread"):
        assert "step 16 was lost" in outcome["reason"]["message"], outcome
    if how != "crash":
        assert [record["line"] for record in ingest.stream("logs")][:2] == ["LAST WORDS", "begun"]
    run.leave_nothing()
