"""The cost of shuffling by blocks: held-out loss with `order: block` and with `order: row`, over several seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR

from ringleader.bench.line import Figure, Target
from ringleader.bench.training.workloads import REAL_IMAGES, digits_rows
from ringleader.data import FileDataset, Packed, ParquetDataset, decode_image
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.rows.order.shuffle_quality import shuffle_quality

BATCH, SHARDS, WINDOW = 64, 2, 4
ORDERS: Mapping[str, Mapping[str, Any]] = {
    "block": {"order": "block", "window_blocks": WINDOW},
    "row": {"order": "row"},
}
REAL_TEXT = REAL_IMAGES.with_name("tinyshakespeare.txt")
TEXT_BYTES, TEXT_LENGTH = 300_000, 64
IMAGE_ROWS, IMAGE_HELD_OUT = 4000, 1000
HELD_OUT = 360
"""Digits."""
NOISE = 2.0
"""Standard errors: within so many of 0, a difference of two means is noise."""
Losses = Callable[[nn.Module, Any], Tensor]
Rows = tuple[FileDataset, FileDataset]


@dataclass(frozen=True, slots=True)
class Course:
    """A training whose held-out loss is compared.

    Attributes:
        rows: writes files into a folder; those to train on, and those held out.
        losses: (n,) nats of a batch's rows.
        noise: whether the difference is held against noise.
    """

    rows: Callable[[Path], Rows]
    net: Callable[[], nn.Module]
    losses: Losses
    epochs: int
    noise: bool = True

    def held_out_loss(self, order: str, seed: int, rows: Rows, place: Path) -> float:
        """Train in this process, through a session."""
        spec = JobSpec.parse(
            {
                "name": "shuffle",
                "entrypoint": "shuffle:train",
                "seed": seed,
                "batch": {"global_size": BATCH, "logical_shards": SHARDS},
                "data": dict(ORDERS[order]),
                "checkpoint": {"every_steps": None},
            }
        )

        def train(session: Session) -> None:
            net = session.model(self.net())
            optimizer = session.optimizer(torch.optim.Adam(net.parameters(), lr=3e-3))
            # To nearly 0, so that what the last batches hold counts for little.
            steps = session.total_steps(rows[0], epochs=self.epochs)
            session.scheduler(LinearLR(optimizer, 1.0, 0.02, steps))
            for _ in range(self.epochs):
                for batch in session.batches(rows[0]):
                    session.step(self.losses(net, batch).mean())
            session.evaluate(rows[1], lambda batch: {"loss": self.losses(net, batch)})

        finished, _ = run_local(spec, train, place)
        return finished.scores["loss"]


def shuffle_figures(
    place: Path, seeds: Sequence[int], courses: Mapping[str, Course] | None = None
) -> Iterator[Figure]:
    """Of each course the losses by blocks and by rows, and what lies between their means."""
    for name, course in (courses or COURSES).items():
        folder = place / name
        folder.mkdir()
        try:
            rows = course.rows(folder)
        except FileNotFoundError as missing:
            yield Figure(f"shuffle-quality-{name}", "nats", "lower", [], settings=f"{missing} is not here")
            continue
        found = {
            order: [course.held_out_loss(order, seed, rows, folder) for seed in seeds] for order in ORDERS
        }
        yield from _compared(name, course, found, _batch_blocks(rows[0]))


def _compared(
    name: str, course: Course, found: Mapping[str, Sequence[float]], blocks: Mapping[str, float]
) -> Iterator[Figure]:
    told = "; ".join(
        f"{order}: {mean(losses):.4f} ± {stdev(losses):.4f}, {blocks[order]:.1f} blocks in a batch"
        for order, losses in found.items()
    )
    case = f"shuffle-quality-{name}"
    yield Figure(case, "nats", "lower", found["block"], found["row"], peer_name="order: row", settings=told)
    apart = (mean(found["block"]) - mean(found["row"])) / _standard_error(*found.values())
    target = Target("ringleader", "<=", NOISE) if course.noise else None
    yield Figure(f"{case}-apart", "standard errors", "lower", [apart], target=target)


def _standard_error(*samples: Sequence[float]) -> float:
    """Of the difference of two means (Welch)."""
    return sqrt(sum(stdev(sample) ** 2 / len(sample) for sample in samples))


def _batch_blocks(rows: FileDataset) -> dict[str, float]:
    blocks = rows.files().block_rows
    return {
        order: shuffle_quality(
            Epoch.shuffled(
                rows=len(rows),
                batch=BATCH,
                shards=SHARDS,
                seed=0,
                epoch=0,
                shuffle=True,
                data=JobSpec.parse({"name": "a", "entrypoint": "a:a", "data": dict(keys)}).data,
                block_rows=blocks,
            ),
            blocks,
        ).batch_blocks
        for order, keys in ORDERS.items()
    }


def _digits(folder: Path, *, by_label: bool = False) -> Rows:
    """Of scikit-learn, row groups of 16: in the order that they have there, or sorted by label."""
    rows = digits_rows()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    held_out, kept = order[:HELD_OUT], order[HELD_OUT:].sort().values
    if by_label:
        kept = kept[rows.y[kept].sort(stable=True).indices]
    return (
        _written(folder / "train.parquet", rows.x[kept], rows.y[kept], 16),
        _written(folder / "held.parquet", rows.x[held_out], rows.y[held_out], HELD_OUT),
    )


def _images(folder: Path) -> Rows:
    """Of CIFAR-10, as bytes, row groups of 50."""
    found = []
    train = REAL_IMAGES.with_name(REAL_IMAGES.name.replace("test", "train"))
    for path, count, group in ((train, IMAGE_ROWS, 50), (REAL_IMAGES, IMAGE_HELD_OUT, IMAGE_HELD_OUT)):
        if not path.exists():
            raise FileNotFoundError(path)
        rows = ParquetDataset(path, decode={"image": decode_image}).__getitems__(range(count))
        x = torch.stack([row["image"] for row in rows]).flatten(1)
        labels = torch.tensor([int(row["label"]) for row in rows])
        found.append(_written(folder / path.name, x, labels, group))
    return found[0], found[1]


def _text(folder: Path) -> Rows:
    """Of Shakespeare, in the order of the plays: a block is the sequences that begin in 64 paragraphs."""
    from ringleader_jobs.language import Paragraphs

    if not REAL_TEXT.exists():
        raise FileNotFoundError(REAL_TEXT)
    text = REAL_TEXT.read_bytes()
    cut = text.index(b"\n\n", TEXT_BYTES)
    held_out = text[cut : cut + TEXT_BYTES // 8]
    return Packed(Paragraphs(text[:cut]), TEXT_LENGTH), Packed(Paragraphs(held_out), TEXT_LENGTH)


def _written(path: Path, x: Tensor, y: Tensor, group: int) -> ParquetDataset:
    values = pa.FixedSizeListArray.from_arrays(pa.array(x.flatten().numpy()), x.shape[1])
    pq.write_table(pa.table({"x": values, "y": y.numpy()}), path, row_group_size=group)
    return ParquetDataset(path)


def _digits_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _image_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    )


def _language_net() -> nn.Module:
    from ringleader_jobs.language import LanguageModel

    return LanguageModel(TEXT_LENGTH, width=32, layers=1, heads=2)


def _digit_losses(net: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return F.cross_entropy(net(batch["x"].float()), batch["y"], reduction="none")


def _image_losses(net: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    pixels = batch["x"].view(-1, 3, 32, 32).float() / 64 - 2
    return F.cross_entropy(net(pixels), batch["y"], reduction="none")


def _language_losses(net: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    from ringleader_jobs.language import losses

    nats, counts = losses(net, batch)
    return nats.sum(1) / counts.sum(1)


COURSES: Mapping[str, Course] = {
    "digits": Course(_digits, _digits_net, _digit_losses, epochs=8),
    "cifar": Course(_images, _image_net, _image_losses, epochs=3),
    "shakespeare": Course(_text, _language_net, _language_losses, epochs=4),
    # What the measure warns of: blocks of one label each.
    "digits-by-label": Course(
        lambda folder: _digits(folder, by_label=True), _digits_net, _digit_losses, epochs=8, noise=False
    ),
}
