"""Training functions that are wrong: a truthful state, the reason's code, the words of the error, and nothing left."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.remains import Remains, remains
from waiting import wait_for
from whole_stack import Running

from ringleader.client import Job
from ringleader.errors import JobFailed

FUNCTIONS = """
import os
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset

def _here():
    Path(os.environ["PIDS"], str(os.getpid())).touch()

class Rows(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, row):
        _here()
        return torch.ones(4), torch.ones(1), row

_here()

def _net(session):
    net = session.model(torch.nn.Linear(4, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    return net

def _loss(net, batch):
    return ((net(batch[0]) - batch[1]) ** 2).mean()

def raises(session):
    net = _net(session)
    for epoch in range(2):
        for batch in session.batches(Rows()):
            if session.epoch == 1 and 7 in batch[2]:
                raise ValueError("this is my own mistake")
            session.step(_loss(net, batch))

def raises_beside_loaders(session):
    _net(session)
    for batch in session.batches(Rows(), loader_workers=1):
        raise ValueError("this is my own mistake")

def no_step(session):
    _net(session)

def twice(session):
    net = _net(session)
    for batch in session.batches(Rows()):
        session.step(_loss(net, batch))
        session.step(_loss(net, batch))

def never(session):
    _net(session)
    for batch in session.batches(Rows()):
        pass

def not_a_number(session):
    net = _net(session)
    for batch in session.batches(Rows()):
        session.step(_loss(net, batch) * float("nan"))

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

def iterable(session):
    _net(session)
    for batch in session.batches(Stream()):
        pass
"""
DEADLINE_S = 300

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)  # whichever comes first starts the stack


@dataclass(frozen=True)
class Case:
    """A wrong function, the size of its group, and what has to be said of it."""

    entrypoint: str
    world: int
    code: str
    words: str

    @property
    def name(self) -> str:
        return f"{self.entrypoint}-{self.world}".replace(":", "-").replace("_", "-")


CASES = (
    Case("functions:raises", 2, "entrypoint_raised", "this is my own mistake"),
    Case("functions:twice", 2, "entrypoint_raised", "called twice"),
    Case("functions:not_a_number", 2, "nonfinite_loss", "loss of step 1"),
    Case("functions:no_step", 2, "no_step", "without a step"),
    Case("vanishing:train", 1, "entrypoint_import", "has no function 'train'"),
    Case("nowhere:train", 1, "entrypoint_import", "No module named 'nowhere'"),
    Case("functions:raises_beside_loaders", 1, "entrypoint_raised", "this is my own mistake"),
    Case("functions:never", 1, "entrypoint_raised", "was not called"),
    Case("functions:iterable", 1, "entrypoint_raised", "ParquetDataset"),
)


@pytest.fixture(scope="module")
def left(stack: Running) -> Iterator[Remains]:
    with remains(stack.home) as asked:
        yield asked


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each job a folder where its functions leave a file for every process they were in."""
    return tmp_path_factory.mktemp("pids")


@pytest.fixture(scope="module")
def jobs(
    stack: Running, left: Remains, pids: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[Case, Job]:
    """All submitted at once: they share the cluster."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "functions.py").write_text(FUNCTIONS)
    # To who only reads the file its function is there.
    (folder / "vanishing.py").write_text("import functions\n\n\ndef train(session): ...\n\n\ndel train\n")
    return {case: submitted(stack, case, pids / case.name, folder) for case in CASES}


def submitted(stack: Running, case: Case, pids: Path, folder: Path) -> Job:
    pids.mkdir()
    job = {
        "name": case.name,
        "entrypoint": case.entrypoint,
        "working_dir": ".",
        "env": {"PIDS": str(pids)},
        "workers": {"min": case.world, "max": case.world},
        "batch": {"global_size": 16, "logical_shards": 2},
    }
    return stack.client.submit(job, working_dir=folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_function_is_named_and_leaves_nothing(
    case: Case, jobs: dict[Case, Job], left: Remains, pids: Path
) -> None:
    job = jobs[case]
    with pytest.raises(JobFailed) as caught:
        job.wait(timeout=DEADLINE_S)
    assert caught.value.state == "failed"
    assert caught.value.code == case.code, caught.value.reason
    assert case.words in caught.value.reason["message"] + caught.value.reason["hint"], caught.value.reason
    assert [event.type for event in job.events()][-1] == "job.failed"
    ran_in = {int(path.name) for path in (pids / case.name).iterdir()}
    assert len(ran_in) >= (0 if case.entrypoint.startswith("nowhere") else case.world)
    wait_for("end of all that the job had", lambda: not left.of_job(job.id, ran_in), 60)


def test_a_slice_that_raises_is_tried_by_another_worker_before_the_job_fails(jobs: dict[Case, Job]) -> None:
    job = jobs[CASES[0]]
    wait_for("its end", lambda: job.refresh().state.ended, DEADLINE_S)
    lost = [event for event in job.events() if event.type == "worker.lost"]
    assert [event.data["cause"] for event in lost][:1] == ["raised"]


def test_in_the_end_the_cluster_holds_its_idle_processes_and_nothing_else(
    jobs: dict[Case, Job], left: Remains
) -> None:
    for job in jobs.values():
        wait_for(f"end of {job.id}", lambda job=job: job.refresh().state.ended, DEADLINE_S)

    def nothing() -> bool:
        found = left.of_cluster()
        quiet = not found["supervisors"] and not found["groups"] and not found["cpus_held"]
        return quiet and found["workers"] == found["idle_workers"]

    wait_for("a cluster that holds idle processes only", nothing, 120)
    wait_for("end of all shared memory", lambda: not left.segments())
