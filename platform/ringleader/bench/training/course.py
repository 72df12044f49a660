"""The training of `bench sync`: CIFAR-10 in stretches of equal length, with the held-out loss after each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.bench.training.workloads import REAL_IMAGES, InMemoryRows
from ringleader.train import Session

GLOBAL_BATCH = 128
STRETCH_STEPS = 16
STRETCH_ROWS = GLOBAL_BATCH * STRETCH_STEPS
# A whole number of stretches, so that none is cut short at the end of a pass.
TRAIN_ROWS, HELD_OUT_ROWS = 24 * STRETCH_ROWS, 1000
LEARNING_RATE, MOMENTUM = 0.02, 0.9
NOISE = 64.0
"""Grey levels of noise in the rows that stand in where CIFAR-10 is missing."""

Crossed = Callable[[], int]


@dataclass(frozen=True, slots=True)
class LossPoint:
    """The state of a training after a stretch.

    Attributes:
        seconds: of training, the mean of the workers' clocks; evaluations stop them.
        loss: mean cross-entropy of the held-out rows, in nats.
    """

    samples: int
    seconds: float
    loss: float
    accuracy: float


@dataclass(slots=True)
class TimedTraining:
    """A training function that ends after `limit_s` seconds of training, for everybody after the same stretch.

    Attributes:
        rows: the file that `save_rows` wrote.
        rate: the learning rate.
        crossed: bytes that have crossed this node's link so far.
        points: one before the first step, and one a stretch; equal on all members.
        waited_s: how long this worker was blocked on the exchange or on rows while it trained, of `trained_s`.
        crossed_bytes: over this node's link while it trained.
    """

    rows: Path
    limit_s: float
    rate: float
    crossed: Crossed
    points: list[LossPoint] = field(default_factory=list)
    waited_s: float = 0.0
    trained_s: float = 0.0
    crossed_bytes: int = 0

    def __call__(self, session: Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=self.rate, momentum=MOMENTUM))
        rows = load_rows(self.rows)
        train, held_out = rows["train"], rows["held out"]
        # Members meet in the first evaluation, so that no clock runs meanwhile.
        self._evaluate(session, net, held_out, samples=0)
        while self.points[-1].seconds < self.limit_s:
            done = self.points[-1].samples
            start = done % len(train)
            stretch = InMemoryRows(
                train.x[start : start + STRETCH_ROWS], train.y[start : start + STRETCH_ROWS]
            )
            self._train(session, net, stretch)
            self._evaluate(session, net, held_out, samples=done + len(stretch))

    @property
    def waiting(self) -> float:
        """The share of the training in which this worker was blocked."""
        return self.waited_s / self.trained_s

    def _train(self, session: Session, net: nn.Module, stretch: InMemoryRows) -> None:
        waited, crossed, since = blocked_s(session), self.crossed(), perf_counter()
        for batch in session.batches(stretch):
            session.step(F.cross_entropy(net(pixels(batch["x"])), batch["y"]))
        self.trained_s += perf_counter() - since
        self.crossed_bytes += self.crossed() - crossed
        self.waited_s += blocked_s(session) - waited

    def _evaluate(self, session: Session, net: nn.Module, held_out: InMemoryRows, samples: int) -> None:
        def score(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
            logits = net(pixels(batch["x"]))
            return {
                "loss": F.cross_entropy(logits, batch["y"], reduction="none"),
                "accuracy": (logits.argmax(1) == batch["y"]).float(),
                # Clocks differ; what an evaluation returns is equal everywhere, so all end after the same stretch.
                "seconds": torch.full((len(logits),), self.trained_s, dtype=torch.float64),
            }

        found = session.evaluate(held_out, score)
        self.points.append(LossPoint(samples, found["seconds"], found["loss"], found["accuracy"]))


def blocked_s(session: Session) -> float:
    """Seconds for which this worker's training thread has waited so far. Not for users."""
    split, generation = session._member.split, session._member.current
    return split.exposed_s + split.idle_s + (generation.exchange.exposed_s if generation else 0.0)


def pixels(x: Tensor) -> Tensor:
    """(n, 3, 32, 32) bytes → float32 around 0."""
    return x.float() / 64 - 2


def small_net() -> nn.Module:
    """(n, 3, 32, 32) → (n, 10) logits. 1.1 million parameters, most of them in one dense layer: enough bytes for the
    exchange to matter between nodes. No BatchNorm, whose running means would depend on the mode."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def save_rows(path: Path) -> str:
    """Write rows that all members map. Returns in words which rows they are."""
    if not REAL_IMAGES.exists():
        torch.save({"train": _noise(TRAIN_ROWS), "held out": _noise(HELD_OUT_ROWS)}, path)
        return "synthetic rows (CIFAR-10 is not beside the checkout)"
    train = REAL_IMAGES.with_name(REAL_IMAGES.name.replace("test", "train"))
    torch.save({"train": _real(train, TRAIN_ROWS), "held out": _real(REAL_IMAGES, HELD_OUT_ROWS)}, path)
    return "CIFAR-10"


def load_rows(path: Path) -> dict[str, InMemoryRows]:
    """The rows that `save_rows` wrote, memory-mapped: processes of a machine share the memory."""
    return {
        name: InMemoryRows(*found) for name, found in torch.load(path, mmap=True, weights_only=True).items()
    }


def _real(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """The first rows of a Parquet file: (n, 3, 32, 32) uint8, (n,) int64."""
    from ringleader.data import ParquetDataset, decode_image

    found = ParquetDataset(path, decode={"image": decode_image}).__getitems__(range(count))
    return torch.stack([r["image"] for r in found]), torch.tensor([r["label"] for r in found])


def _noise(count: int) -> tuple[Tensor, Tensor]:
    """A faint pattern for each class under noise: something to learn."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * NOISE / 8
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(0, 10, (count,), generator=generator)
    values = 128 + patterns[labels] + NOISE * torch.randn(count, 3, 32, 32, generator=generator)
    return values.clamp(0, 255).to(torch.uint8), labels
