"""Programs whose loop's body goes on from what its earlier turns left, where neither text nor variables show it."""

import os
from functools import cache

import numpy as np
import torch
from programs import network, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from ringleader.train import Session

STEP = 0
DRAW = np.random.default_rng(3)


def trained(session: Session, loss_of: "object", data: "Dataset[object] | None" = None) -> None:
    net = session.model(network())
    sgd(session, net)
    for _ in range(6):
        for x, y in session.batches(data or rows()):
            session.step(loss_of(net(x), y))  # type: ignore[operator]


class Warming(nn.Module):
    """A loss that counts in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(logits, labels) * min(1.0, self.calls / 20)


def attribute_of_a_loss(session: Session) -> None:
    trained(session, Warming())


def count_in_a_closure(session: Session) -> None:
    n = 0

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return F.cross_entropy(logits, labels) * min(1.0, n / 20)

    trained(session, loss_of)


def count_in_a_global(session: Session) -> None:
    trained(session, _counted)


def _counted(logits: Tensor, labels: Tensor) -> Tensor:
    global STEP
    STEP += 1
    return F.cross_entropy(logits, labels) / STEP


def mutable_default(session: Session) -> None:
    trained(session, _remembered)


def _remembered(logits: Tensor, labels: Tensor, seen: list[float] = []) -> Tensor:  # noqa: B006
    seen.append(1.0)
    return F.cross_entropy(logits, labels) / len(seen)


def attribute_of_a_function(session: Session) -> None:
    _warm.n = 0  # type: ignore[attr-defined]
    trained(session, _warm)


def _warm(logits: Tensor, labels: Tensor) -> Tensor:
    _warm.n += 1  # type: ignore[attr-defined]
    return F.cross_entropy(logits, labels) / _warm.n  # type: ignore[attr-defined]


class _Weights:
    def __init__(self) -> None:
        self.mean = 1.0


class _Balance:
    def __init__(self) -> None:
        self.weights = _Weights()

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, labels)
        self.weights.mean = 0.9 * self.weights.mean + 0.1 * loss.item()
        return loss / self.weights.mean


def mean_in_an_object_of_an_object(session: Session) -> None:
    trained(session, _Balance())


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Noise of a generator of its module."""

    def __init__(self) -> None:
        self.rows = rows()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[row]
        return x + torch.tensor(DRAW.normal(size=x.shape), dtype=x.dtype), y


def generator_of_a_data_sets_module(session: Session) -> None:
    trained(session, F.cross_entropy, Noisy())


class Counting(Noisy):
    """Rows that grow each time they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        x, y = self.rows[row]
        return x * (1 + self.reads / 100), y


def count_of_a_data_set(session: Session) -> None:
    trained(session, F.cross_entropy, Counting())


HIDDEN = {
    program.__name__: program
    for program in (
        attribute_of_a_loss,
        count_in_a_closure,
        count_in_a_global,
        mutable_default,
        attribute_of_a_function,
        mean_in_an_object_of_an_object,
        count_of_a_data_set,
    )
}
LINE = "for x, y in session.batches(data or rows()):"


class Remembering(Noisy):
    """Rows that are kept once they have been read."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, tuple[Tensor, Tensor]] = {}

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row not in self.cache:
            self.cache[row] = self.read(row)
        return self.cache[row]

    def read(self, row: int) -> tuple[Tensor, Tensor]:
        return self.rows[row]


class Centred(Noisy):
    """Rows less the first one that was read here."""

    def __init__(self) -> None:
        super().__init__()
        self.origin: Tensor | None = None

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[row]
        if self.origin is None:
            self.origin = x.clone()
        return x - self.origin, y


def first_row_of_a_data_set(session: Session) -> None:
    trained(session, F.cross_entropy, Centred())


def scale_in_the_environment(session: Session) -> None:
    os.environ.pop("FIRST_LOSS", None)
    trained(session, _scaled)


def _scaled(logits: Tensor, labels: Tensor) -> Tensor:
    loss = F.cross_entropy(logits, labels)
    os.environ.setdefault("FIRST_LOSS", str(loss.item()))
    return loss / float(os.environ["FIRST_LOSS"])


class Rotation:
    """A basis of the first batch, kept by a bound method."""

    basis: Tensor | None = None

    def collate(self, items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])
        if self.basis is None:
            self.basis = torch.linalg.svd(x)[2]
        return x @ self.basis.t(), y


def basis_of_a_collate_method(session: Session) -> None:
    net, rotation, data = session.model(network()), Rotation(), None
    sgd(session, net)
    for _ in range(6):
        for x, y in session.batches(data or rows(), collate=rotation.collate):
            session.step(F.cross_entropy(net(x), y))


FITTED = {
    program.__name__: program
    for program in (first_row_of_a_data_set, scale_in_the_environment, basis_of_a_collate_method)
}
"""Programs that keep what they make of the first rows here, for good: a step gives the same twice."""


class KeptNoise(Remembering):
    """Noise of torch's global stream, kept by row."""

    def read(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[row]
        return x + torch.randn(x.shape), y


class KeptOwnNoise(Remembering):
    """Noise of a generator of the data set's own, kept by row."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.default_rng(3)

    def read(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[row]
        return x + torch.tensor(self.draws.normal(size=x.shape), dtype=x.dtype), y


class SeededNoise(Remembering):
    """Noise with a seed by row."""

    def read(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[row]
        return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(row)), y


class GloballySeededNoise(Remembering):
    """Noise of numpy's global stream, with a seed by row."""

    def read(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[row]
        np.random.seed(row)
        return x + torch.tensor(np.random.normal(size=x.shape), dtype=x.dtype), y


class AugmentedCopies(Remembering):
    """Rows that are kept, and moved anew each time."""

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(row)
        return x + torch.randn(x.shape), y


def noise_kept_by_row(session: Session) -> None:
    trained(session, F.cross_entropy, KeptNoise())


def own_noise_kept_by_row(session: Session) -> None:
    trained(session, F.cross_entropy, KeptOwnNoise())


def cached_noise(session: Session) -> None:
    trained(session, _shifted)


def _shifted(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits + _noise(logits.shape), labels)


@cache
def _noise(shape: torch.Size) -> Tensor:
    return torch.randn(shape)


def rows_kept(session: Session) -> None:
    trained(session, F.cross_entropy, Remembering())


def seeded_noise_kept_by_row(session: Session) -> None:
    trained(session, F.cross_entropy, SeededNoise())


def globally_seeded_noise_kept_by_row(session: Session) -> None:
    trained(session, F.cross_entropy, GloballySeededNoise())


def rows_kept_and_augmented(session: Session) -> None:
    trained(session, F.cross_entropy, AugmentedCopies())


def weights_of_classes_cached(session: Session) -> None:
    trained(session, _weighted)


def _weighted(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, weight=_weights(logits.shape[1]))


@cache
def _weights(classes: int) -> Tensor:
    return torch.linspace(1, 2, classes)


def teacher_made_late(session: Session) -> None:
    trained(session, _taught)


def _taught(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(_teacher(logits.shape[1])(logits), labels)


@cache
def _teacher(classes: int) -> nn.Module:
    teacher = nn.Linear(classes, classes)
    nn.init.eye_(teacher.weight)
    nn.init.zeros_(teacher.bias)
    return teacher.requires_grad_(False)


READS = "def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:"
KEPT_DRAWS = {
    "noise_kept_by_row": ("data set", READS),
    "own_noise_kept_by_row": ("data set", READS),
    "cached_noise": ("loop body", LINE),
}
"""Programs that keep what they have drawn, with the finding's variable and line."""
KEPT = (
    "generator_of_a_data_sets_module",
    "rows_kept",
    "seeded_noise_kept_by_row",
    "globally_seeded_noise_kept_by_row",
    "rows_kept_and_augmented",
    "weights_of_classes_cached",
    "teacher_made_late",
)
"""Programs that keep, or draw, what is the same on every worker."""
