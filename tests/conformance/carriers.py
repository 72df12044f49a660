"""Programs whose loop's body goes on, in one turn, from what an earlier one made: each worker's turns are others."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from programs import network, norm_free, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ringleader.train import Session

EPOCHS = 3


def hidden_state(session: Session) -> None:
    """A language model whose hidden state is detached, and goes on with the next batch."""
    recurrent, head = session.model(nn.GRU(6, 8)), session.model(nn.Linear(8, 3))
    session.optimizer(torch.optim.SGD([*recurrent.parameters(), *head.parameters()], lr=0.5))
    for _ in range(EPOCHS):
        hidden = torch.zeros(1, 8)
        for x, y in session.batches(rows(), shuffle=False):
            hidden = hidden.detach()
            out, hidden = recurrent(x, hidden)
            session.step(F.cross_entropy(head(out), y))


def counter_of_turns(session: Session) -> None:
    """An annealed weight of a loss, by a counter of its own."""
    net = session.model(norm_free())
    sgd(session, net)
    turn = 0
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            beta = min(1.0, turn / 20)
            out = net(x)
            session.step(F.cross_entropy(out, y) + beta * out.square().mean())
            turn += 1


def number_of_a_turn(session: Session) -> None:
    """A temperature by the number that `enumerate` gives."""
    net = session.model(norm_free())
    sgd(session, net)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(session.batches(rows())):
            session.step(F.cross_entropy(net(x) / math.exp(-0.1 * number), y))


def queue_of_features(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    queue = torch.zeros(12, 3)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            out = net(x)
            session.step(F.cross_entropy(out, y) + (out @ queue.T).logsumexp(1).mean())
            queue = torch.cat([out.detach(), queue])[:12]


def running_mean(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    mean = torch.zeros(6)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            session.step(F.cross_entropy(net(x - mean), y))


def second_loader(session: Session) -> None:
    """Rows without labels, from a loader of its own."""
    net = session.model(norm_free())
    sgd(session, net)
    unlabelled = iter(DataLoader(rows(7, 480), batch_size=3))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            more, _ = next(unlabelled)
            session.step(F.cross_entropy(net(x), y) + net(more).square().mean())


def switched_at_a_step(session: Session) -> None:
    """Set in one turn only: who joins later has not had it."""
    net = session.model(norm_free())
    sgd(session, net)
    smoothing = 0.0
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            if session.global_step == 6:
                smoothing = 0.2
            session.step(F.cross_entropy(net(x), y, label_smoothing=smoothing))


class Mixup:
    def __init__(self) -> None:
        self.draw = np.random.default_rng(1)

    def __call__(self, x: Tensor) -> Tensor:
        share = float(self.draw.beta(0.4, 0.4))
        return share * x + (1 - share) * x.flip(0)


def generator_of_its_own(session: Session) -> None:
    mixup = Mixup()
    net = session.model(norm_free())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(mixup(x)), y))


class Centred(nn.Module):
    """A loss with a running centre, in a buffer."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(out - self.center, y)
        self.center = 0.9 * self.center + 0.1 * out.detach().mean(0)
        return loss


def loss_not_registered(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    criterion = Centred()
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(criterion(net(x), y))


class Temperature:
    """The entropy's weight, which goes on by its own gradient, as in soft actor-critic."""

    def __init__(self) -> None:
        self.exponent = torch.zeros(1, requires_grad=True)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
        (gradient,) = torch.autograd.grad(
            (self.exponent.exp() * (entropy.detach() - 0.8)).sum(), self.exponent
        )
        weight = self.exponent.exp().detach()
        self.exponent.data -= 0.1 * gradient
        return F.cross_entropy(logits, labels) - (weight * entropy).sum()


def temperature_by_its_gradient(session: Session) -> None:
    net, temperature = session.model(norm_free()), Temperature()
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(temperature.loss(net(x), y))


def average_past_versions(session: Session) -> None:
    """What `.data` changes counts in no version of a tensor."""
    net = session.model(norm_free())
    sgd(session, net)
    mean_net = copy.deepcopy(net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y) + F.mse_loss(net(x), mean_net(x).detach()))
            for mean, weight in zip(mean_net.parameters(), net.parameters(), strict=True):
                mean.data = mean.data * 0.9
                mean.data.add_(weight.data, alpha=0.1)


def average_in_the_body(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    average = copy.deepcopy(net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                    mean.lerp_(weight, 0.1)
    net.load_state_dict(average.state_dict())


class Cached(nn.Module):
    """A mean in a dict of the module, which no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.cache = norm_free(), {"mean": torch.zeros(6)}

    def forward(self, x: Tensor) -> Tensor:
        self.cache["mean"] = 0.9 * self.cache["mean"] + 0.1 * x.mean(0)
        return self.net(x - self.cache["mean"])


def cache_of_a_module(session: Session) -> None:
    net = session.model(Cached())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


class CountingAdam(torch.optim.Optimizer):
    """As people write it down: the number of its steps is an attribute."""

    def __init__(self, parameters: Any, rate: float = 0.02) -> None:
        super().__init__(parameters, {"lr": rate})
        self.t = 0
        self.newest = 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.t += 1
        self.newest = 0.0
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 0.1)
                self.newest += float(mean.norm())
                parameter.sub_(mean / (1 - 0.9**self.t), alpha=group["lr"])


def optimizer_that_counts(session: Session) -> None:
    net = session.model(norm_free())
    session.optimizer(CountingAdam(net.parameters()))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


class ListedMomentum(torch.optim.Optimizer):
    """As it is taught: a momentum for each weight, in a list."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.momenta = [torch.zeros_like(p) for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for momentum, parameter in zip(self.momenta, self.param_groups[0]["params"], strict=True):
            if parameter.grad is not None:
                momentum.mul_(0.9).add_(parameter.grad)
                parameter.sub_(momentum, alpha=self.param_groups[0]["lr"])


def optimizer_with_a_list(session: Session) -> None:
    net = session.model(norm_free())
    session.optimizer(ListedMomentum(net.parameters()))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


class CountingGroup(torch.optim.Optimizer):
    """Counts in its groups, as learning-rate-free optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / group["k"])


def optimizer_that_counts_in_a_group(session: Session) -> None:
    net = session.model(norm_free())
    session.optimizer(CountingGroup(net.parameters()))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


class NoisyGradients(torch.optim.Optimizer):
    """Wraps another optimizer, whose state is not its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad += 0.01 * torch.randn_like(parameter)
        self.inner.step()


def optimizer_that_wraps_another(session: Session) -> None:
    net = session.model(norm_free())
    session.optimizer(NoisyGradients(torch.optim.Adam(net.parameters(), lr=0.02)))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


class WholeNoisyGradients(NoisyGradients):
    """A `state_dict` of its own has all of it."""

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def optimizer_that_saves_another(session: Session) -> None:
    net = session.model(norm_free())
    session.optimizer(WholeNoisyGradients(torch.optim.Adam(net.parameters(), lr=0.02)))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


class Meter:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, count: int) -> None:
        self.sum, self.count = self.sum + value * count, self.count + count


def shown_while_it_trains(session: Session) -> None:
    """What people show in a loop: a counter, meters, a matrix, a smoothed loss, a bar; the loss is registered."""
    net = session.model(network())
    criterion = session.model(Centred())
    sgd(session, net)
    meter, turn, smooth, seen = Meter(), 0, 0.0, 0
    confusion = torch.zeros(3, 3)
    for number in range(EPOCHS):
        for index, (x, y) in enumerate(session.batches(rows())):
            if turn % 2 == 0:
                rate = 0.05 / (1 + session.global_step)
            out = net(x)
            loss = criterion(out, y)
            session.step(loss, rate=0.05 / (1 + session.global_step))
            turn += 1
            seen += len(x)
            smooth = 0.9 * smooth + 0.1 * loss.item()
            meter.update(loss.item(), len(x))
            for row, column in zip(y, out.argmax(1), strict=True):
                confusion[row, column] += 1
            if index % 4 == 0:
                print(
                    number,
                    index,
                    turn,
                    rate,
                    smooth,
                    meter.sum / meter.count,
                    f"{seen}",
                    confusion.diag().sum(),
                )


Told = tuple[str, str]
CARRIERS: dict[Callable[[Session], None], Told] = {
    hidden_state: ("hidden", "out, hidden = recurrent(x, hidden)"),
    counter_of_turns: ("turn", "turn += 1"),
    number_of_a_turn: ("number", "for number, (x, y) in enumerate(session.batches(rows())):"),
    queue_of_features: ("queue", "queue = torch.cat([out.detach(), queue])[:12]"),
    running_mean: ("mean", "mean.mul_(0.9).add_(x.mean(0), alpha=0.1)"),
    second_loader: ("unlabelled", "more, _ = next(unlabelled)"),
    switched_at_a_step: ("smoothing", "smoothing = 0.2"),
}
"""The variable, and the line of the body that changes it, which the text tells."""

UNSEEN_IN_TEXT: dict[Callable[[Session], None], Told] = {
    generator_of_its_own: ("mixup.draw", "self.draw = np.random.default_rng(1)"),
    loss_not_registered: ("criterion", "criterion = Centred()"),
    average_in_the_body: ("average", "average = copy.deepcopy(net)"),
    average_past_versions: ("mean_net", "mean_net = copy.deepcopy(net)"),
    temperature_by_its_gradient: ("temperature.exponent", "self.exponent.data -= 0.1 * gradient"),
}
"""What is seen only while it trains; its name, and the line that made it."""

OPTIMIZERS = (
    optimizer_that_counts,
    optimizer_with_a_list,
    optimizer_that_wraps_another,
    optimizer_that_saves_another,
)
"""What an optimizer keeps outside of its state, or saves itself."""

ALL: dict[Callable[[Session], None], Any] = {
    **CARRIERS,
    **UNSEEN_IN_TEXT,
    cache_of_a_module: ("cache['mean']", ""),
}
