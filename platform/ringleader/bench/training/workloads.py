"""The models and rows that both sides of a step benchmark train: the same tensors, the same optimizer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import Dataset

from ringleader.optim import LAMB, LARS

PAUSE_S = 0.02
"""Seconds that a step of the recovery benchmark sleeps, to take about as long as one on a real model."""
WORDS = 36_600
Batch = Mapping[str, Tensor]
REAL_IMAGES = Path("../shared/data/cifar10-test.parquet")
"""CIFAR-10 as Parquet, where it lies beside the checkout."""


class InMemoryRows(Dataset[dict[str, Tensor]]):
    """Rows held in memory, so that neither side is measured reading files."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"x": self.x[row], "y": self.y[row]}


@dataclass(frozen=True, slots=True)
class Turn:
    """One of several updates of a step: the part of the model that it changes, and its loss, (model, batch) → ()."""

    part: str
    loss: Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model with its rows, loss, optimizer and global batch.

    Attributes:
        turns: the updates of a step, where there are several; each has an optimizer of its own.
        decay: of an average of the weights, which each step updates; 0: there is none.
    """

    net: Callable[[], nn.Module]
    rows: Callable[[], InMemoryRows]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    global_batch: int
    turns: tuple[Turn, ...] = ()
    decay: float = 0.0

    def optimizers(self, net: nn.Module) -> list[Optimizer]:
        """One for the model, or one for each turn."""
        parts = [net.get_submodule(turn.part) for turn in self.turns] or [net]
        return [self.optimizer(part.parameters()) for part in parts]

    def losses(self) -> list[Callable[[nn.Module, Batch], Tensor]]:
        """One for the model, or one for each turn."""
        return [turn.loss for turn in self.turns] or [
            lambda net, batch: self.loss(net(batch["x"]), batch["y"])
        ]


def mlp_net() -> nn.Module:
    """25.2 million parameters, (n, 1024) → (n, 1024)."""
    sizes = [(1024, 3072), (3072, 3072), (3072, 3072), (3072, 1024)]
    layers: list[nn.Module] = [nn.Linear(*sizes[0])]
    for inputs, outputs in sizes[1:]:
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


def mlp_rows() -> InMemoryRows:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2048, 1024, generator=generator)
    return InMemoryRows(x, x.roll(1, dims=1))


def wide_net() -> nn.Module:
    """16.7 million parameters, (n, 1024) → (n, 1024): with Adam's moments a state of 200 MB."""
    return nn.Sequential(
        nn.Linear(1024, 3500), nn.ReLU(), nn.Linear(3500, 2900), nn.ReLU(), nn.Linear(2900, 1024)
    )


class Tuned(nn.Module):
    """Frozen embeddings of 150 MB under 4.2 million trained parameters, (n, 16) words → (n, 1024).

    With Adam's moments a state of 200 MB, as where a part of a large network is tuned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 1024).requires_grad_(requires_grad=False)
        self.head = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))

    def forward(self, words: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.words(words).mean(dim=1)))


def word_rows() -> InMemoryRows:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, WORDS, (2048, 16), generator=generator)
    return InMemoryRows(words, torch.randn(2048, 1024, generator=generator))


def digits_net() -> nn.Module:
    """The network of the recovery benchmark: (n, 64) → (n, 10)."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def digits_rows() -> InMemoryRows:
    # Here only: a job on other rows shall import nothing but torch.
    from sklearn.datasets import load_digits

    digits = load_digits()
    return InMemoryRows(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))


def noise_rows() -> InMemoryRows:
    """Rows of the digits' shape that need no import but torch's."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 10, (1797,), generator=generator)
    return InMemoryRows(torch.randn(1797, 64, generator=generator), labels)


def image_net() -> nn.Module:
    """The network of the image recipe."""
    from ringleader_jobs.image import image_net

    return image_net()


def image_rows() -> InMemoryRows:
    """10,000 test images of CIFAR-10 where they are there, else noise of the same shape."""
    if not REAL_IMAGES.exists():
        generator = torch.Generator().manual_seed(1)
        labels = torch.randint(0, 10, (4096,), generator=generator)
        return InMemoryRows(torch.randn(4096, 3, 32, 32, generator=generator), labels)
    from ringleader.data import ParquetDataset, decode_image_float

    dataset = ParquetDataset(REAL_IMAGES, decode={"image": decode_image_float})
    found = dataset.__getitems__(range(len(dataset)))
    return InMemoryRows(torch.stack([r["image"] for r in found]), torch.tensor([r["label"] for r in found]))


class Adversaries(nn.Module):
    """A generator and a critic of images, (n, 64) noise → (n, 3, 32, 32) → (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            *(nn.Linear(64, 128 * 16), nn.Unflatten(1, (128, 4, 4)), nn.BatchNorm2d(128), nn.ReLU()),
            *(nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()),
        )
        self.critic = nn.Sequential(
            *(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(64, 128, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128 * 16, 1)),
        )

    def fake(self, count: int) -> Tensor:
        return cast(Tensor, self.generator(torch.randn(count, 64)))


def critic_loss(net: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(net, Adversaries)
    real, fake = net.critic(batch["x"]), net.critic(net.fake(len(batch["x"])).detach())
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def generator_loss(net: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(net, Adversaries)
    return F.softplus(-net.critic(net.fake(len(batch["x"])))).mean()


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def lars(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return LARS(parameters, lr=1.0, weight_decay=1e-4)


def lamb(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return LAMB(parameters, lr=1e-3)


WORKLOADS: dict[str, Workload] = {
    "mlp": Workload(mlp_net, mlp_rows, F.mse_loss, sgd, global_batch=64),
    "wide": Workload(wide_net, mlp_rows, F.mse_loss, adam, global_batch=8),
    "tuned": Workload(Tuned, word_rows, F.mse_loss, adam, global_batch=8),
    "digits": Workload(digits_net, digits_rows, F.cross_entropy, sgd, global_batch=96),
    "noise": Workload(digits_net, noise_rows, F.cross_entropy, sgd, global_batch=96),
    "cifar": Workload(image_net, image_rows, F.cross_entropy, sgd, global_batch=256),
    "cifar-lars": Workload(image_net, image_rows, F.cross_entropy, lars, global_batch=256),
    "cifar-lamb": Workload(image_net, image_rows, F.cross_entropy, lamb, global_batch=256),
    "cifar-ema": Workload(image_net, image_rows, F.cross_entropy, sgd, global_batch=256, decay=0.999),
    "gan": Workload(
        *(Adversaries, image_rows, F.cross_entropy, adam, 64),
        turns=(Turn("critic", critic_loss), Turn("generator", generator_loss)),
    ),
}
