"""Training functions that go step by step: lines of their own between two steps, which evaluate, keep and leave."""

import random
from typing import Any

import numpy as np
import torch
from programs import EPOCHS, Program, accuracy, network, norm_free, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

from ringleader.train import Session

BY_STEPS: dict[str, Program] = {}
OFTEN = 2
"""Steps between two evaluations: with local SGD rounds end there."""


def program(function: Program) -> Program:
    BY_STEPS[function.__name__] = function
    return function


def losses(session: Session, step: Any, net: nn.Module) -> None:
    for x, y in step:
        session.step(F.cross_entropy(net(x), y))


class Patience:
    """How often a score was no better, and the rate that follows from it. Implements Stateful."""

    def __init__(self) -> None:
        self.best, self.bad, self.rate = -1.0, 0, 0.05

    def hear(self, score: float) -> None:
        self.best, self.bad = (score, 0) if score > self.best else (self.best, self.bad + 1)
        self.rate *= 0.8 if self.bad else 1.0

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


@program
def steps_with_evaluations(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            losses(session, step, net)
            if session.global_step % OFTEN == 0:
                accuracy(session, net)


@program
def best_weights_of_steps(session: Session) -> None:
    """The best of all evaluated steps is loaded at the end; a good score ends a loop."""
    net = session.model(network())
    sgd(session, net, lr=0.3)
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            losses(session, step, net)
            if session.global_step % OFTEN == 0 and session.best(net, accuracy(session, net)):
                break
    session.load_best(net)


@program
def rate_of_what_lines_keep(session: Session) -> None:
    """Lines between steps change a kept object, twice, by scores and by a draw; the next step's body reads it."""
    net = session.model(network())
    optimizer = sgd(session, net)
    patience = Patience()
    session.keep("patience", patience)
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            for x, y in step:
                optimizer.param_groups[0]["lr"] = patience.rate
                session.step(F.cross_entropy(net(x), y))
            patience.rate *= 0.99 + 0.01 * random.random()
            if session.global_step % OFTEN == 0:
                patience.hear(accuracy(session, net))
                patience.hear(accuracy(session, net) / 2)


@program
def schedule_by_what_lines_keep(session: Session) -> None:
    """The same where servers make the updates: what is kept is read between two loops."""
    net = session.model(network())
    optimizer = sgd(session, net)
    patience = Patience()
    session.keep("patience", patience)
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            losses(session, step, net)
            patience.rate *= 0.99 + 0.01 * random.random()
            if session.global_step % OFTEN == 0:
                patience.hear(accuracy(session, net))
        optimizer.param_groups[0]["lr"] = patience.rate


@program
def score_read_behind_the_loop(session: Session) -> None:
    """The newest score of a loop's lines sets the rate of the next loop; a name of the body is printed."""
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            if session.global_step % 4 == 2:
                score = accuracy(session, net)
        print(x.shape)
        optimizer.param_groups[0]["lr"] = 0.05 * (1.5 - score)


@program
def average_of_steps(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    average = session.ema(net, 0.9)
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            losses(session, step, net)
            if session.global_step % OFTEN == 0:
                hits = session.evaluate(
                    rows(1, 20), lambda batch: {"hit": (average(batch[0]).argmax(1) == batch[1]).float()}
                )
                session.best(net, hits["hit"])
    average.load_into(net)


@program
def stopped_behind_a_step(session: Session) -> None:
    """`stop` ends a loop behind the next step, whose lines evaluate; another loop is left before a step."""
    net = session.model(network())
    sgd(session, net)
    for step in session.steps(rows()):
        losses(session, step, net)
        if session.global_step >= 2:
            session.stop()
        session.best(net, accuracy(session, net))
    for step in session.steps(rows(3)):
        if session.global_step >= 6:
            break
        losses(session, step, net)
    for step in session.steps(rows(4), drop_last=True):
        losses(session, step, net)
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))
    session.load_best(net)
    with torch.no_grad():
        next(net.parameters()).mul_(1.5 - accuracy(session, net))


class Jittered(TensorDataset):
    """Rows with noise, from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(*rows().tensors)
        self.draws = np.random.default_rng(7)

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + 0.1 * self.draws.normal(), y


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draws = torch.Generator().manual_seed(7)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=self.draws) if self.training else x


@program
def generators_of_others_drawn_behind_steps(session: Session) -> None:
    """Those of the data set and of a module, from which slices draw, too."""
    noise, data, patience = Noise(), Jittered(), Patience()
    net = session.model(nn.Sequential(noise, network()))
    sgd(session, net)
    session.keep("patience", patience)
    for _ in range(EPOCHS):
        for step in session.steps(data):
            for x, y in step:
                session.step(patience.rate * F.cross_entropy(net(x), y))
            patience.rate *= 0.99 + 0.01 * data.draws.random()
            if session.global_step % OFTEN == 0:
                patience.hear(accuracy(session, net))
            patience.rate *= 0.99 + 0.01 * float(torch.rand((), generator=noise.draws))


@program
def weights_of_hooks_read_behind_steps(session: Session) -> None:
    """The masked weights, and those of the older `spectral_norm`."""
    net, patience = norm_free(), Patience()
    prune.l1_unstructured(net[0], "weight", 0.3)
    nn.utils.spectral_norm(net[2])
    session.model(net)
    sgd(session, net)
    session.keep("patience", patience)
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            for x, y in step:
                session.step(patience.rate * F.cross_entropy(net(x), y))
            patience.rate = 1 + 0.1 * float(net[0].weight.norm() + net[2].weight.norm())


SET_IN_A_BODY = frozenset(["rate_of_what_lines_keep"])
"""Programs whose bodies set rates, which servers refuse."""
