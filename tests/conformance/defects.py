"""Programs with something that the session does not know of."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from programs import network, rows, sgd
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ringleader.train import Session

LOSSES: list[float] = []
DRAW = np.random.default_rng()
EPOCHS = 8


def running_loss(session: Session) -> None:
    net = session.model(network())
    schedule = ReduceLROnPlateau(sgd(session, net), patience=0, threshold=0.5)
    for _ in range(EPOCHS):
        running, count = 0.0, 0
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            session.step(loss)
            running += loss.item()
            count += 1
        schedule.step(running / count)


def counter_file(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        turn(session, net)
        file = Path(session.params["file"])
        count = int(file.read_text()) + 1 if file.exists() else 1
        file.write_text(str(count))
        optimizer.param_groups[0]["lr"] = 0.1 / count


def clock(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        turn(session, net)
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + time.time() % 7)


def list_outside(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            session.step(loss)
            LOSSES.append(loss.item())
        if LOSSES[-1] < LOSSES[0]:
            optimizer.param_groups[0]["lr"] *= 0.5


def hidden_generator(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        turn(session, net)
        factor = float(DRAW.random())
        optimizer.param_groups[0]["lr"] *= factor


class Trainer:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.net = session.model(network())
        self.optimizer = sgd(session, self.net)
        self.lowest = 1e9

    def fit(self) -> None:
        for _ in range(EPOCHS):
            for x, y in self.session.batches(rows()):
                loss = F.cross_entropy(self.net(x), y)
                self.session.step(loss)
                self.lowest = min(self.lowest, loss.item())
            self.optimizer.param_groups[0]["lr"] = 0.05 * self.lowest


def attribute(session: Session) -> None:
    Trainer(session).fit()


def turn(session: Session, net: nn.Module) -> None:
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))


def shown_means(session: Session) -> None:
    """A clock, a sum and the newest batch, which are only shown."""
    started = time.time()
    net = session.model(network())
    sgd(session, net)
    history: list[Any] = []
    for number in range(EPOCHS):
        total, seen = 0.0, 0
        for batch in session.batches(rows()):
            loss = F.cross_entropy(net(batch[0]), batch[1])
            session.step(loss)
            total += loss.item() * len(batch[0])
            seen += len(batch[0])
        mean = total / seen
        history.append((mean, time.time() - started))
        print(f"{number}: {mean:.3f}, {torch.is_tensor(loss)}, {history[-1]}")


BODY = {
    "running_loss": ("running", "running += loss.item()"),
    "list_outside": ("LOSSES", "LOSSES.append(loss.item())"),
    "attribute": ("lowest", "self.lowest = min(self.lowest, loss.item())"),
}
"""Of programs that read behind a loop what its body made: the variable and the line that the text tells."""

LR = "optimizer.param_groups[0]['lr']"
DEFECTS = {
    "list_outside": ("LOSSES", "LOSSES: list[float] = []"),
    "attribute": ("self.lowest", "self.lowest = 1e9"),
    "counter_file": ("count", "count = int(file.read_text()) + 1 if file.exists() else 1"),
    "clock": (LR, 'optimizer.param_groups[0]["lr"] = 0.1 / (1 + time.time() % 7)'),
    "hidden_generator": ("DRAW", "DRAW = np.random.default_rng()"),
}
"""Of programs whose lines make something else when they run again: a variable or setting, and its line."""

HARMLESS = ["shown_means"]
