"""What the tests of joiners train: everything that a joiner which follows a member has to follow."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from play import Play
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

ROWS, BATCH, EPOCHS = 150, 32, 16
STEPS = EPOCHS * 5


class Centred(nn.Module):
    """What it gives depends on what the steps before have left in its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return x - self.mean


class Average:
    """A kept object that callbacks move, larger than what is sent again at a boundary, and one that is small."""

    def __init__(self, net: nn.Module, padding: int) -> None:
        self.net = net
        self.mean = [p.detach().clone() for p in net.parameters()]
        self.padding = torch.zeros(padding)

    def update(self) -> None:
        self.padding += 1
        for mean, parameter in zip(self.mean, self.net.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": [m.clone() for m in self.mean], "padding": self.padding.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.padding = [m.clone() for m in state["mean"]], state["padding"].clone()


Meddling = Callable[[int, nn.Module], object]
"""(committed steps, network): changes the network in the loop's body."""


def nothing(_step: int, _net: nn.Module) -> None:
    """The body trains, and that is all."""


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def train(
    session: Session,
    *,
    adam: bool = False,
    dropout: float = 0.0,
    decays: bool = False,
    touches: bool = False,
    shifts: bool = False,
    before: Meddling = nothing,
    behind: Meddling = nothing,
) -> None:
    """BatchNorm, a buffer that counts, clipping, a schedule, weights of slices, averages that become the weights now
    and then, evaluations, an unused parameter."""
    layers = [
        Centred(),
        nn.Linear(6, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(16, 2),
    ]
    net = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(1)  # threads share the default one
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    net.register_parameter("unused", nn.Parameter(torch.ones(3)))
    session.model(net)
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    optimizer = session.optimizer((torch.optim.Adam if adam else sgd)(net.parameters()), clip_norm=0.5)
    session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.9))
    averages = {name: Average(net, padding) for name, padding in (("small", 1), ("large", 300_000))}
    for name, average in averages.items():
        session.keep(name, average)
        session.on_commit(average.update)
    session.on_commit(lambda: pull(net, averages) if session.global_step % 7 == 0 else None)
    data = rows()

    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    for epoch in range(EPOCHS):
        for x, y in session.batches(data):
            if decays:
                optimizer.param_groups[0]["weight_decay"] = 0.01 * session.global_step
            if touches:
                with torch.no_grad():
                    net.unused.fill_(2)
            if shifts:
                averages["large"].mean[1].view(-1)[session.global_step] = 1.0  # of 96
            before(session.global_step, net)
            session.step(F.cross_entropy(net(x), y), weight=float(len(x) + epoch))
            behind(session.global_step, net)
        if epoch % 4 == 3:
            session.evaluate(data, score)


@torch.no_grad()
def pull(net: nn.Module, averages: dict[str, Average]) -> None:
    """What an average has missed shows in the weights."""
    for parameter, small, large in zip(
        net.parameters(), averages["small"].mean, averages["large"].mean, strict=True
    ):
        parameter.lerp_((small + large) / 2, 0.5)


def spec(workers: tuple[int, int], **keys: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "joins",
            "entrypoint": "m:f",
            "workers": {"min": workers[0], "max": workers[1]},
            "batch": {"global_size": BATCH, "logical_shards": 4},
            **keys,
        }
    )


@cache
def undisturbed(**how: Any) -> str:
    """The digest of one process that computes every shard itself."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        return run_local(spec((1, 1)), partial(train, **how), Path(place))[0].digest


def check(play: Play) -> None:
    """What holds whatever happened."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))


def healed(play: Play) -> set[str]:
    """Who took a whole state over while everybody waited, but for the first plan."""
    return {receiver for plan in play.plans[1:] for receiver, _ in plan.heals}
