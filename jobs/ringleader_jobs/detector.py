"""A detector with two heads: which digits are on a canvas, and the box of each; evaluated with averaged weights."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

import ringleader
from ringleader_jobs.digits import Digits

SIDE, CELL, MOST = 48, 8, 4
"""Pixels of a canvas, pixels of a cell, digits on a canvas."""
CELLS = SIDE // CELL
NOTHING = 10
"""The class of a cell in which no digit has its centre."""


class Canvases(Dataset[dict[str, Tensor]]):
    """Canvases with one to four digits of different sizes, and what the heads shall say of each cell.

    Those to train on are drawn anew at each read, by the streams that the session seeds for each slice; those held out
    are of other digits and always the same.
    """

    def __init__(self, *, train: bool, rows: int) -> None:
        self.digits, self.rows, self.train = Digits(train=train), rows, train

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        draw = None if self.train else torch.Generator().manual_seed(row)
        image = 0.1 * torch.randn(1, SIDE, SIDE, generator=draw).abs()
        kinds = torch.full((CELLS, CELLS), NOTHING)
        boxes = torch.zeros(4, CELLS, CELLS)
        # One in a quarter of the canvas at most, so that no digit hides another.
        for quarter in torch.randperm(4, generator=draw)[
            : int(torch.randint(1, MOST + 1, (), generator=draw))
        ]:
            digit = int(torch.randint(len(self.digits), (), generator=draw))
            size = int(torch.randint(10, SIDE // 2 - 3, (), generator=draw))
            y, x = (torch.randint(0, SIDE // 2 - size + 1, (2,), generator=draw)).tolist()
            y, x = y + int(quarter) // 2 * SIDE // 2, x + int(quarter) % 2 * SIDE // 2
            pixels = self.digits.image[digit].unsqueeze(0)
            image[:, y : y + size, x : x + size] += F.interpolate(pixels, size=size, mode="bilinear")[0]
            row_at, column_at = int(y + size / 2) // CELL, int(x + size / 2) // CELL
            kinds[row_at, column_at] = self.digits.label[digit]
            boxes[:, row_at, column_at] = torch.tensor([x, y, x + size, y + size]) / SIDE
        return {"image": image, "kinds": kinds, "boxes": boxes}


class Detector(nn.Module):
    """(n, 1, 48, 48) → (n, 11, 6, 6) logits of the digit in each cell, and (n, 4, 6, 6) its box: x, y, x, y in 0..1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.kind = nn.Conv2d(4 * width, NOTHING + 1, 3, padding=1)
        self.edges = nn.Conv2d(4 * width, 4, 3, padding=1)
        # (4, 6, 6) the middle of each cell, from which boxes are counted.
        middle = (torch.arange(CELLS) + 0.5) / CELLS
        y, x = torch.meshgrid(middle, middle, indexing="ij")
        self.register_buffer("middle", torch.stack([x, y, x, y]), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        found = self.trunk(image)
        return self.kind(found), self.middle + self.edges(found)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """(n, ...) intersection over union of boxes (n, 4, ...)."""
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    areas = [(box[:, 2:] - box[:, :2]).clamp(min=0).prod(1) for box in (a, b)]
    return both / (areas[0] + areas[1] - both).clamp(min=1e-6)


def detection_scores(
    net: Callable[[Tensor], tuple[Tensor, Tensor]], batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Of each canvas: the share of its digits that are found (kind right, box over half), and the false alarms."""
    logits, boxes = net(batch["image"])
    kinds, there = logits.argmax(1), batch["kinds"] != NOTHING
    found = there & (kinds == batch["kinds"]) & (overlap(boxes, batch["boxes"]) > 0.5)
    alarms = ~there & (kinds != NOTHING)
    return {
        "found": found.sum((1, 2)) / there.sum((1, 2)),
        "false_alarms": alarms.sum((1, 2)).float(),
    }


def train(session: ringleader.Session) -> None:
    """Params: `rows` (canvases an epoch), `width`, `lr`, `decay` (of the averaged weights), `epochs`."""
    params, epochs = session.params, session.params.get("epochs", 12)
    train_set = Canvases(train=True, rows=params.get("rows", 1600))
    test_set = Canvases(train=False, rows=200)

    net = session.model(Detector(params.get("width", 16)))
    peak = params.get("lr", 4e-3)
    optimizer = session.optimizer(torch.optim.AdamW(net.parameters(), lr=peak), clip_norm=1.0)
    session.scheduler(OneCycleLR(optimizer, peak, total_steps=session.total_steps(train_set, epochs=epochs)))
    average = session.ema(net, params.get("decay", 0.98))
    counts = torch.ones(NOTHING + 1, device=session.device)
    counts[NOTHING] = 0.2  # of 36 cells few hold a digit

    for _ in range(epochs):
        for batch in session.batches(train_set):
            logits, boxes = net(batch["image"])
            there = (batch["kinds"] != NOTHING).unsqueeze(1)
            kind_loss = F.cross_entropy(logits, batch["kinds"], counts, reduction="none").mean()
            box_loss = ((boxes - batch["boxes"]).abs() * there).mean()
            session.step(kind_loss + 5 * box_loss, kind_loss=kind_loss, box_loss=box_loss)
        session.evaluate(test_set, lambda batch: detection_scores(average, batch))
    average.load_into(net)
