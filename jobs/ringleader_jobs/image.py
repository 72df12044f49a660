"""Images from Parquet: a small residual network with BatchNorm, flips and crops, and a one-cycle rate."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

import ringleader
from ringleader.data import ParquetDataset, decode_image

MEAN = (0.4914, 0.4822, 0.4465)  # of CIFAR-10's red, green and blue; close enough for other photographs
STD = (0.2470, 0.2435, 0.2616)
PAD = 4


class Images(Dataset[dict[str, Tensor]]):
    """Rows with `image` (encoded RGB bytes, all of one size) and `label` as normalized tensors.

    With `augment` every read flips at random and crops after padding by 4 pixels. The session seeds torch for
    each slice, so the same row is cut the same way whichever worker reads it.
    """

    def __init__(self, path: str, *, augment: bool) -> None:
        self.rows = ParquetDataset(
            path, columns=["image", "label"], decode={"image": decode_image}, keep_decoded=True
        )
        self.augment = augment
        # Times 255: `decode_image` gives bytes, and the means above are of pixels in 0..1.
        self.mean, self.std = (torch.tensor(value).view(1, 3, 1, 1) * 255 for value in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return self.__getitems__([row])[0]

    # Loaders call this, where it is there, with all rows of a slice: one stack and one crop, not many.
    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Tensor]]:
        found = self.rows.__getitems__(rows)
        images = (torch.stack([r["image"] for r in found]).float() - self.mean) / self.std  # (n, 3, h, w)
        if self.augment:
            images = cropped(flipped(images))
        labels = torch.tensor([r["label"] for r in found])
        return [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]


def flipped(images: Tensor) -> Tensor:
    """(n, c, h, w), each mirrored with probability one half."""
    mirror = torch.rand(len(images)) < 0.5
    return torch.where(mirror.view(-1, 1, 1, 1), images.flip(3), images)


def cropped(images: Tensor) -> Tensor:
    """(n, c, h, w), each moved by up to `PAD` pixels, zeros coming in."""
    height, width = images.shape[2:]
    padded = F.pad(images, (PAD,) * 4)
    corners = torch.randint(0, 2 * PAD + 1, (len(images), 2)).tolist()
    return torch.stack(
        [image[:, y : y + height, x : x + width] for image, (y, x) in zip(padded, corners, strict=True)]
    )


class Block(nn.Module):
    """Two 3×3 convolutions and a way round them (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        # No bias: BatchNorm takes the mean away, and has a bias of its own.
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.way_round = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.way_round(x))


def image_net(classes: int = 10, width: int = 16, blocks: int = 1) -> nn.Module:
    """(n, 3, h, w) → (n, classes) logits: three stages, each twice as wide and half as large as the last."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for stage, outputs in enumerate((width, 2 * width, 4 * width)):
        for block in range(blocks):
            layers.append(Block(inputs, outputs, stride=2 if stage and block == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def train(session: ringleader.Session) -> None:
    """Params: `train` and `test` (Parquet paths or URIs), `classes`, `width`, `blocks`, `lr`, `epochs`."""
    params = session.params
    train_set, test_set = Images(params["train"], augment=True), Images(params["test"], augment=False)
    epochs, peak = params.get("epochs", 10), params.get("lr", 0.4)

    net = session.model(
        image_net(params.get("classes", 10), params.get("width", 16), params.get("blocks", 1))
    )
    optimizer = session.optimizer(
        torch.optim.SGD(net.parameters(), lr=peak, momentum=0.9, weight_decay=5e-4, nesterov=True)
    )
    session.scheduler(OneCycleLR(optimizer, peak, total_steps=session.total_steps(train_set, epochs=epochs)))

    def score(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"accuracy": (net(batch["image"]).argmax(1) == batch["label"]).float()}

    for _ in range(epochs):
        for batch in session.batches(train_set):
            logits = net(batch["image"])
            loss = F.cross_entropy(logits, batch["label"])
            session.step(loss, train_accuracy=(logits.argmax(1) == batch["label"]).float().mean())
        session.evaluate(test_set, score)
