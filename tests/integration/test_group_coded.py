"""Coded gradients among real processes: kills and resizes lose and repeat nothing but what the lost worker owed.

The loss is linear in the weights, so the sum of all gradients is known without training: weights, plus what the workers
still owe, are compared with it.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from play import Play
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ringleader.comm.codecs import CODECS
from ringleader.spec import JobSpec
from ringleader.train import Session

ROWS, BATCH, EPOCHS, WIDE = 150, 32, 3, 256
STEPS = EPOCHS * 5


def rows() -> Tensor:
    """(ROWS, WIDE, WIDE): 256 KB a gradient, magnitudes far apart."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(ROWS, WIDE, 1, generator=generator) * torch.logspace(-2, 0, WIDE)[:, None]
    return left * torch.randn(ROWS, 1, WIDE, generator=generator)


def train(session: Session) -> None:
    """Each worker writes at every commit what it holds and what it owes."""
    net = nn.Module()
    net.register_parameter("matrix", nn.Parameter(torch.zeros(WIDE, WIDE)))
    session.model(net)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1.0))
    out = Path(session.params["out"])

    def write() -> None:
        residuals = session._member.laying.coding.residuals  # type: ignore[union-attr]
        state = {
            "weights": net.matrix.detach(),
            "owed": residuals.owed("0.matrix"),
            "step": session.global_step,
        }
        torch.save(state, out / f"{os.getpid()}.part")
        (out / f"{os.getpid()}.part").rename(out / f"{os.getpid()}.pt")

    session.on_commit(write)
    data = TensorDataset(rows())
    for _ in range(EPOCHS):
        for (x,) in session.batches(data):
            session.step((net.matrix * x.mean(dim=0)).sum())


def job(out: Path, codec: str, **changes: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "coded",
        "entrypoint": "coded:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": BATCH, "logical_shards": 4},
        "sync": {"codec": codec},
        "params": {"out": str(out)},
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


def check(play: Play, out: Path) -> None:
    assert play.outcome == "succeeded", (play.reason, play.message)
    # Equal weights on all members: `digest` insists on it.
    assert play.digest
    assert [step for step, _, _ in play.rows] == list(range(1, STEPS + 1))
    data = rows()
    expected = -sum(data[torch.as_tensor(read, dtype=torch.int64)].mean(dim=0) for _, _, read in play.rows)
    held = [torch.load(file) for file in out.glob("*.pt")]
    assert len(held) == len(play.pids)
    weights = next(h["weights"] for h in held if h["step"] == STEPS)
    owed = sum(h["owed"].view(WIDE, WIDE) for h in held)
    # Fifteen float32 updates of a few units, in another order.
    assert torch.allclose(weights - owed, expected, rtol=1e-4, atol=1e-4)
    # Without what is owed the sums differ: the line above sees it.
    assert owed.abs().max() > 2e-3


@pytest.mark.parametrize("phase", ["exchange", "committed"])
def test_a_kill_and_a_replacement_repeat_nothing(tmp_path: Path, phase: str) -> None:
    faults = FaultPlan().kill("w1", at_step=7, phase=phase).hold("w0", at_step=10, for_generation=3)
    play = Cast(job(tmp_path, "onebit"), train, faults, tmp_path).play()
    assert play.worlds == [3, 2, 3]
    check(play, tmp_path)
    # Rank 0 of three: two foreign thirds out, its own third out twice. A message is padded to four bytes.
    thirds = [CODECS["onebit"].size(n) for n in (21845, 21845, 21846)]
    assert play.values[0][1]["comm_bytes"] == sum(
        -(-size // 4) * 4 for size in (*thirds[1:], *thirds[:1] * 2)
    )


@pytest.mark.parametrize("codec", ["int8", "powersgd"])
def test_resizes_lose_nothing(tmp_path: Path, codec: str) -> None:
    faults = (
        FaultPlan()
        .resize(at_step=2, workers_min=3, workers_max=3)
        .hold("w0", at_step=4, for_generation=2)
        .resize(at_step=9, workers_min=2, workers_max=2)
        .hold("w0", at_step=11, for_generation=3)
    )
    play = Cast(job(tmp_path, codec, workers={"min": 1, "max": 1}), train, faults, tmp_path).play()
    check(play, tmp_path)
    assert play.worlds == [1, 3, 2]
