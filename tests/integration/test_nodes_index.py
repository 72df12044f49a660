"""Workers on two nodes of a Ray cluster, each with a scratch folder of its own: one of them all reads a set of files to
find its blocks, and a joiner has the index of one that was lost."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import counted_files
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counted_files import SCHEME, openers, settle
from integration.ray_home import IngestServer, living, ray_node
from integration.runtime_job import start, write_training
from pace import gates
from waiting import wait_for

from ringleader.files import SCRATCH
from ringleader.runtime.nodes.cluster import RayCluster
from ringleader.wire.package import pack

AWAY = "127.0.0.4"
FILES, ROWS = 5, 16
TRAIN = """
import torch
from pace import keep_pace
from counted_files import count_files
from ringleader.data import ParquetDataset

def train(session):
    count_files()
    rows = ParquetDataset(session.params["rows"])
    net = session.model(torch.nn.Linear(1, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.001))
    table = [{"x": torch.ones(1)} for _ in range(len(rows))]
    for epoch in range(session.params["epochs"]):
        for batch in session.batches(table):
            keep_pace(session)
            session.step(net(batch["x"]).mean())
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("away")


@pytest.fixture(scope="module")
def away(cluster: RayCluster, scratch: Path) -> Iterator[str]:
    """The id of the second node, whose disk is another one."""
    with ExitStack() as ends:
        with pytest.MonkeyPatch.context() as environ:
            environ.setenv(SCRATCH, str(scratch))
            node = ends.enter_context(ray_node(AWAY, num_cpus=8))
        wait_for("second node", lambda: node in living(), 180)
        yield node


@pytest.fixture
def files(tmp_path: Path) -> Path:
    here = tmp_path / "files"
    here.mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"n": list(range(ROWS))}), here / f"{number}.parquet", row_group_size=7)
    settle(here)
    return here


def read(files: Path) -> list[list[int]]:
    """By file, the processes that opened it."""
    return [openers(file) for file in sorted(files.glob("*.parquet"))]


@pytest.mark.timeout(400)
def test_of_the_workers_on_all_nodes_and_joiners_one_reads_each_file(
    cluster: RayCluster,
    away: str,
    scratch: Path,
    home: Path,
    ingest: IngestServer,
    files: Path,
    tmp_path: Path,
) -> None:
    write_training(tmp_path / "own", TRAIN)
    shutil.copy(counted_files.__file__, tmp_path / "own")
    params = {"epochs": 30, "rows": f"{SCHEME}{files}", "gates": gates(tmp_path, 60)}
    run = start(
        cluster,
        home,
        ingest,
        pack(tmp_path / "own"),
        "indexed",
        workers={"min": 2, "max": 2, "placement": "spread"},
        params=params,
    )
    run.until_world(2)
    run.until_step(4)
    nodes = {worker["node"] for worker in ingest.status["workers"]}
    assert len(nodes) == 2
    assert away in nodes
    ((maker,),) = {tuple(each) for each in read(files)}
    kept = [
        index
        for folder in (Path(os.environ[SCRATCH]), scratch)
        for index in folder.glob("ringleader-*/indexes/*.arrow")
    ]
    assert [scratch in index.parents for index in kept].count(True) == 1, "each node has its own"
    # The next worker on the maker's node finds no index there.
    for index in kept:
        index.unlink()
    before = run.pids()
    assert maker in before.values()
    os.kill(maker, signal.SIGKILL)
    wait_for("the replacement", lambda: len(ingest.events("worker.joined")) > len(before), 120)
    run.open_gate(60)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [lost["worker"] for lost in ingest.events("worker.lost")] == [
        worker for worker, pid in before.items() if pid == maker
    ]
    assert read(files) == [[maker]] * FILES
    run.leave_nothing()
