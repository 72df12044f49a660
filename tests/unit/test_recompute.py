"""Recomputed submodules: the bits, draws, buffers and names of the model without, and less memory."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import RING, SERVERS, job, rows, worker
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.errors import StepMisuse
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.state.recomputation import recompute_in, repeated_blocks

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(F.relu(self.norm(self.inner(x))))


def stack(blocks: int = 3, dropout: float = 0.0) -> nn.Sequential:
    net = nn.Sequential(*(Block(dropout) for _ in range(blocks)), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape).remainder(5) / 5 - 0.3)
    return net


class Training:
    """Trains a stack of blocks with that argument."""

    def __init__(self, recompute: Any = "none", dropout: float = 0.0) -> None:
        self.recompute, self.dropout = recompute, dropout

    def __call__(self, session: Session) -> None:
        net = session.model(stack(dropout=self.dropout), recompute=self.recompute)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["plain", "draws"])
@pytest.mark.parametrize("recompute", ["auto", ["1"], ["0", "2.norm"]], ids=str)
def test_recomputed_blocks_keep_bits_draws_and_buffers(
    recompute: Any, dropout: float, tmp_path: Path
) -> None:
    plain, _ = run_local(job(RING), Training(dropout=dropout), tmp_path)
    again, _ = run_local(job(RING), Training(recompute, dropout), tmp_path)
    assert again.digest == plain.digest
    assert again.reproducible, again.reproducible_why


@pytest.mark.parametrize("sync", [RING, SERVERS], ids=["ring", "servers"])
def test_a_kill_and_a_joiner_keep_the_bits(sync: dict[str, Any], tmp_path: Path) -> None:
    plain, _ = run_local(job(RING), Training(), tmp_path)
    faults = FaultPlan().kill(worker(sync, 0), at_step=3)
    play = ThreadedCast(job(sync), Training("auto"), faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == plain.digest


def test_less_is_kept_for_the_backward() -> None:
    def kept(net: nn.Module) -> int:
        held = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal held
            held += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            net(torch.ones(64, 5))
        return held

    net = stack(6)
    plain = kept(net)
    recompute_in(net, "auto")
    assert kept(net) < plain / 2  # the inputs of blocks stay


def test_names_copies_and_pickles_are_those_of_the_model() -> None:
    net = stack()
    names = list(net.state_dict())
    recompute_in(net, "auto")
    assert list(net.state_dict()) == names
    assert isinstance(net[0], Block)
    twin = copy.deepcopy(net)
    assert type(twin[0]) is Block
    assert twin[0].inner.weight is not net[0].inner.weight
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)[1]) is Block
    assert torch.equal(net.eval()(torch.ones(2, 5)), twin.eval()(torch.ones(2, 5)))


def test_repeated_blocks_are_the_outermost_of_one_class() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block())])
            self.head = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
            self.one = nn.Sequential(Block(), nn.Linear(5, 5))

    assert repeated_blocks(Net()) == ["layers.0", "layers.1"]


@pytest.mark.parametrize(
    ("recompute", "told"),
    [
        (["4.inner"], "no submodule '4.inner' to recompute; it has: 0, 0.inner"),
        ([""], "no submodule ''"),
        ("all", "recompute='all'"),
        ([1], "recompute=[1]"),
    ],
)
def test_what_cannot_be_recomputed_is_refused_in_words(recompute: Any, told: str) -> None:
    with pytest.raises(StepMisuse) as caught:
        recompute_in(stack(), recompute)
    assert told in str(caught.value)
    with pytest.raises(StepMisuse, match="repeats no block"):
        recompute_in(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)), "auto")
