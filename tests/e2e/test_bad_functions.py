"""Training functions that are wrong: a truthful state, the reason's code, the words of the error, and nothing left."""

from pathlib import Path

import pytest
from e2e.remains import remains
from waiting import wait_for
from whole_stack import Running

from ringleader.errors import JobFailed

FUNCTIONS = """
import torch
from torch.utils.data import IterableDataset, TensorDataset

def _net(session):
    net = session.model(torch.nn.Linear(4, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    return net

def _rows():
    return TensorDataset(torch.randn(32, 4), torch.randn(32, 1))

def _loss(net, batch):
    return ((net(batch[0]) - batch[1]) ** 2).mean()

def raises(session):
    net = _net(session)
    for batch in session.batches(_rows()):
        session.step(_loss(net, batch))
        if session.global_step == 2:
            raise ValueError("this is my own mistake")

def no_step(session):
    _net(session)

def twice(session):
    net = _net(session)
    for batch in session.batches(_rows()):
        session.step(_loss(net, batch))
        session.step(_loss(net, batch))

def never(session):
    _net(session)
    for batch in session.batches(_rows()):
        pass

def not_a_number(session):
    net = _net(session)
    for batch in session.batches(_rows()):
        session.step(_loss(net, batch) * float("nan"))

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

def iterable(session):
    _net(session)
    for batch in session.batches(Stream()):
        pass
"""
CASES = {
    "functions:absent": ("entrypoint_import", "has no function 'absent'"),
    "nowhere:train": ("entrypoint_import", "No module named 'nowhere'"),
    "functions:raises": ("entrypoint_raised", "this is my own mistake"),
    "functions:no_step": ("no_step", "without a step"),
    "functions:twice": ("entrypoint_raised", "called twice"),
    "functions:never": ("entrypoint_raised", "was not called"),
    "functions:not_a_number": ("nonfinite_loss", "loss of step 1"),
    "functions:iterable": ("entrypoint_raised", "ParquetDataset"),
}


@pytest.mark.timeout(600)
def test_every_wrong_function_is_named_and_leaves_nothing(stack: Running, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    jobs = {
        entrypoint: stack.client.submit(
            {
                "name": entrypoint.replace(":", "-").replace("_", "-"),
                "entrypoint": entrypoint,
                "working_dir": ".",
                "workers": {"min": 1, "max": 1},
                "batch": {"global_size": 16, "logical_shards": 2},
            },
            working_dir=tmp_path,
        )
        for entrypoint in CASES
    }
    for entrypoint, (code, words) in CASES.items():
        with pytest.raises(JobFailed) as caught:
            jobs[entrypoint].wait(timeout=300)
        said = f"{entrypoint}: {caught.value.reason}"
        assert caught.value.state == "failed", said
        assert caught.value.code == code, said
        assert words in caught.value.reason["message"] + caught.value.reason["hint"], said
        assert [e.type for e in jobs[entrypoint].events()][-1] == "job.failed", said
    ours = {job.id for job in jobs.values()}

    def left() -> bool:
        found = remains(stack.home)
        return not ours & {job for job, _ in found["supervisors"]} and found["free"] == found["all"]

    wait_for("a cluster that holds nothing of them", left, 120)
