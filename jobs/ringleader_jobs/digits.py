"""Handwritten digits: a small convolutional network on the real images that ship inside scikit-learn."""

from collections.abc import Mapping
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

import ringleader

TEST_ROWS = 360
SPLIT_SEED = 20


class Digits(Dataset[dict[str, Tensor]]):
    """1,437 images to train on, or 360 held out; the split is fixed and the two never share a row."""

    def __init__(self, *, train: bool) -> None:
        digits = load_digits()
        # A generator of its own: the split must not depend on the job's seed.
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(SPLIT_SEED))
        rows = order[TEST_ROWS:] if train else order[:TEST_ROWS]
        # scikit-learn has these images in grey levels from 0 to 16.
        self.image = torch.tensor(digits.images, dtype=torch.float32)[rows].unsqueeze(1) / 16  # (n, 1, 8, 8)
        self.label = torch.tensor(digits.target, dtype=torch.int64)[rows]  # (n,)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"image": self.image[row], "label": self.label[row]}


def digits_net() -> nn.Module:
    """(n, 1, 8, 8) pixels in 0..1 → (n, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(128, 10),
    )


def digit_scores(net: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One value a row: the session takes the mean over all rows, whoever scores which."""
    logits = net(batch["image"])
    return {
        "accuracy": (logits.argmax(1) == batch["label"]).float(),
        "test_loss": F.cross_entropy(logits, batch["label"], reduction="none"),
    }


def train(session: ringleader.Session) -> None:
    """Params: `lr` (the peak of the one-cycle schedule), `epochs`."""
    train_set, test_set = Digits(train=True), Digits(train=False)
    epochs = session.params.get("epochs", 40)
    peak = session.params.get("lr", 0.1)

    net = session.model(digits_net())
    # Clipped by the session: in the body of the loop it would be a slice's gradient, not the step's.
    optimizer = session.optimizer(
        torch.optim.SGD(net.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4), clip_norm=1.0
    )
    session.scheduler(OneCycleLR(optimizer, peak, total_steps=session.total_steps(train_set, epochs=epochs)))

    for _ in range(epochs):
        for batch in session.batches(train_set):
            logits = net(batch["image"])
            loss = F.cross_entropy(logits, batch["label"])
            session.step(loss, train_accuracy=(logits.argmax(1) == batch["label"]).float().mean())
        session.evaluate(test_set, partial(digit_scores, net))
