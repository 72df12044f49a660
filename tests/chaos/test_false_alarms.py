"""Nobody is evicted for nothing: a job beside two busy loops, and one whose code holds the interpreter's lock."""

import multiprocessing as mp
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.ray_home import IngestServer, ray_head
from integration.runtime_job import TRAIN, start, write_training
from waiting import wait_for

from ringleader.runtime.nodes.cluster import RayCluster
from ringleader.wire.package import pack

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]
MINUTES = float(os.environ.get("CHAOS_MINUTES", "10"))
HOLDING = (
    TRAIN
    + """
import re

def hold(session):
    net = session.model(torch.nn.Linear(8, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    slow, word = re.compile("(a+)+b"), "a" * session.params["held"]
    for epoch in range(session.params["epochs"]):
        for batch in session.batches(Rows()):
            if session.global_step % 10 == 5:
                slow.match(word)  # seconds in one call, which gives the lock to nobody
            session.step(net(batch["x"]).mean())
"""
)


def spin() -> None:
    while True:
        pass


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [mp.get_context("spawn").Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


def package(folder: Path, source: str) -> bytes:
    write_training(folder, source)
    return pack(folder)


def test_nobody_is_evicted_beside_two_busy_loops(tmp_path: Path) -> None:
    packed = package(tmp_path / "work", TRAIN)
    with ray_head(tmp_path / "home") as (address, _):
        cluster, ingest = RayCluster.connect(address), IngestServer()
        cluster.warm(3)
        run = start(
            cluster,
            tmp_path / "home",
            ingest,
            packed,
            "busy",
            workers={"min": 1, "max": 3},
            params={"epochs": 10_000_000, "pause": 0.01},
        )
        run.until_world(3)
        with busy_loops(2):
            until = time.monotonic() + 60 * MINUTES
            wait_for(
                "the time to pass", lambda: ingest.outcome() or time.monotonic() > until, 60 * MINUTES + 60
            )
        assert ingest.outcome() is None
        told = {kind: ingest.events(kind) for kind in ("worker.lost", "worker.stalled", "worker.slow")}
        print(f"{MINUTES:g} minutes, step {run.step()}, {told}")
        assert (told["worker.lost"], told["worker.stalled"]) == ([], [])
        assert len({e["members"][0] for e in ingest.events("generation.formed")}) == 1
        cluster.cancel("busy", 1, 20.0)
        run.outcome()
        ingest.close()
        cluster.close()


def test_code_that_holds_the_interpreters_lock_for_seconds_is_not_frozen(tmp_path: Path) -> None:
    """As long as a process uses the CPU it is no frozen one: 25 letters take some seconds."""
    packed = package(tmp_path / "work", HOLDING)
    with ray_head(tmp_path / "home") as (address, _):
        cluster, ingest = RayCluster.connect(address), IngestServer()
        cluster.warm(2)
        run = start(
            cluster,
            tmp_path / "home",
            ingest,
            packed,
            "held",
            function="hold",
            workers={"min": 1, "max": 2},
            params={"epochs": 8, "held": 25},
        )
        outcome = run.outcome(600)
        assert outcome["outcome"] == "succeeded", outcome
        assert ingest.events("worker.lost") == []
        ingest.close()
        cluster.close()
