"""Every optimizer in every mode that promises bits: those of one process, with and without a worker that is killed."""

import copy
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from threaded_cast import ThreadedCast
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import TensorDataset
from undisturbed import undisturbed

from ringleader.optim import LAMB, LARS, WarmUp
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
ROWS, BATCH, SHARDS, EPOCHS = 44, 16, 4, 3
STEPS = 9

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda weights: optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda weights: optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda weights: optim.Adam(weights, lr=0.01),
    "amsgrad": lambda weights: optim.Adam(weights, lr=0.01, amsgrad=True),
    "adamw": lambda weights: optim.AdamW(weights, lr=0.01),
    "rmsprop": lambda weights: optim.RMSprop(weights, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda weights: optim.Adagrad(weights, lr=0.05),
    "adafactor": lambda weights: optim.Adafactor(weights, lr=0.05),
    "nadam": lambda weights: optim.NAdam(weights, lr=0.01),
    "radam": lambda weights: optim.RAdam(weights, lr=0.01),
    "lars": lambda weights: LARS(weights, lr=1.0, weight_decay=0.01, trust_coefficient=0.02),
    "lamb": lambda weights: LAMB(weights, lr=0.02),
}
SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
LOCAL = {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 2}
MODES: dict[str, Any] = {"ring": "ring", "servers": SERVERS | {"servers": 2}, "local_sgd": LOCAL}
MORE_MODES: dict[str, Any] = {
    "backed": SERVERS | {"servers": 2, "server_backups": 1},
    "copies": {"inter_node": "ring", "intra_node": "parameter_server", "servers": 2},
    "diloco": LOCAL | {"outer": "nesterov"},
}
CASES = [*product(OPTIMIZERS, MODES), *product(("adafactor", "lars", "lamb"), MORE_MODES)]
"""More modes for those that look at a parameter as a whole."""


def job(mode: str, shards: int = SHARDS) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "optimizers",
            "entrypoint": "optimizers:train",
            "workers": {"min": 1, "max": min(2, shards)},
            "batch": {"global_size": BATCH, "logical_shards": shards},
            "sync": (MODES | MORE_MODES)[mode],
        }
    )


def drawn() -> tuple[nn.Module, TensorDataset]:
    """A kernel, biases, matrices: Adafactor factors the moments of some of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 1, 6, 6, generator=generator)
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.Tanh(),
        nn.Linear(12, 3),
    )
    return net, TensorDataset(x, torch.randint(0, 3, (ROWS,), generator=generator))


NET, DATA = drawn()
"""Copied by every member: the generator that draws weights is shared by all threads."""


def trainer(name: str, seen: list[Tensor] | None = None) -> Callable[[Session], None]:
    def train(session: Session) -> None:
        net = session.model(copy.deepcopy(NET))
        optimizer = session.optimizer(OPTIMIZERS[name](net.parameters()), clip_norm=5.0)
        session.scheduler(WarmUp(optimizer, 3, total_steps=2 * STEPS))
        for _ in range(EPOCHS):
            for x, y in session.batches(DATA, shuffle=False):
                session.step(F.cross_entropy(net(x), y))
        if seen is not None:
            seen.extend(parameter.detach().clone() for parameter in net.parameters())

    return train


@cache
def program(name: str) -> Callable[[Session], None]:
    return trainer(name)


def alone(name: str, mode: str) -> str:
    """The digest of one process that computes every shard itself."""
    return undisturbed(job(mode), program(name))[0].digest


@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_an_optimizer_has_the_bits_of_one_process(name: str, mode: str, killed: bool, tmp_path: Path) -> None:
    spec = job(mode)
    lost = f"w{1 + spec.sync.server_count}"
    faults = FaultPlan().kill(lost, at_step=3, phase="forward") if killed else FaultPlan()
    play = ThreadedCast(spec, trainer(name), faults, tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [loss["worker"] for loss in play.reported("worker.lost")] == [lost] * killed
    assert {finished.reproducible_why for finished in play.finished.values()} == {""}
    assert play.digest == alone(name, mode)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_trains_as_in_plain_torch(name: str, tmp_path: Path) -> None:
    seen: list[Tensor] = []
    run_local(job("ring", shards=1), trainer(name, seen), tmp_path)
    net = copy.deepcopy(NET)
    optimizer = OPTIMIZERS[name](net.parameters())
    schedule = WarmUp(optimizer, 3, total_steps=2 * STEPS)
    x, y = DATA.tensors
    for _ in range(EPOCHS):
        for rows in torch.arange(ROWS).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            schedule.step()
    for mine, plain in zip(seen, net.parameters(), strict=True):
        # torch adds the squares of the clipping norm in float32, which may scale all gradients by another last bit.
        assert torch.allclose(mine, plain, rtol=0.0, atol=1e-6)
