"""Compiled models: names and copies are the model's own, and without a compiler the job is refused by name."""

import copy
from pathlib import Path

import pytest
import torch
from test_leaving import RING, job, rows
from test_recompute import Block, stack
from torch import nn
from torch.nn import functional as F

from ringleader.errors import StepMisuse
from ringleader.train import Session
from ringleader.train.device.compiled_forward import CACHE, compile_forward
from ringleader.train.local import run_local

torch.set_num_threads(1)
CPU = torch.device("cpu")


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape).remainder(5) / 5 - 0.3)
    return net


def train(session: Session) -> None:
    net = session.model(network(), compile=True)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    data = rows()
    for _ in range(2):
        # The last batch has fewer rows: slices of two shapes.
        for x, y in session.batches(torch.utils.data.Subset(data, range(68))):
            session.step(F.cross_entropy(net(x), y))
        session.evaluate(data, lambda batch: {"hit": (net(batch[0]).argmax(1) == batch[1]).float()})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(CACHE, raising=False)
    monkeypatch.setenv("RINGLEADER_SCRATCH", str(tmp_path))
    return tmp_path


def test_without_a_compiler_the_job_is_refused_by_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(StepMisuse, match=r"has no C\+\+ compiler: 'g\+\+' is not on its PATH") as caught:
        run_local(job(RING), train, cache / "out")
    assert "leave compile out" in caught.value.hint
    monkeypatch.setenv("CXX", "another-c++ -m64")
    with pytest.raises(StepMisuse, match="'another-c"):
        compile_forward(network(), CPU)
    (cache / "g++").write_text("#!/bin/sh\n")
    (cache / "g++").chmod(0o755)
    monkeypatch.delenv("CXX")
    compile_forward(network(), CPU)  # there is one: nothing is compiled yet


def test_the_cache_is_private(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")
    own = next(iter([*cache.glob("ringleader-*")]), None)
    assert own is None
    compile_forward(network(), CPU)
    (own,) = cache.glob("ringleader-*")
    assert [path.stat().st_mode & 0o777 for path in (own, own / "compiled")] == [0o700, 0o700]
    monkeypatch.delenv(CACHE)
    (own / "compiled").chmod(0o777)
    with pytest.raises(StepMisuse, match="others can write to it"):
        compile_forward(network(), CPU)


def test_names_and_copies_are_those_of_the_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")
    net = network()
    names = list(net.state_dict())
    compile_forward(net, CPU)
    assert list(net.state_dict()) == names == list(network().state_dict())
    twin = copy.deepcopy(net).eval()
    assert type(twin) is nn.Sequential
    assert torch.equal(twin(torch.ones(2, 5)), network().eval()(torch.ones(2, 5)))


def test_compiled_blocks_with_buffers_are_not_recomputed(cache: Path, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.model(stack(), compile=True, recompute="auto")

    with pytest.raises(StepMisuse, match="is to recompute '0', which has buffers"):
        run_local(job(RING), train, tmp_path)
    assert type(stack()[0]) is Block
