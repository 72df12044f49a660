"""Programs whose turns change attributes of objects: such as a later turn goes on from, and such as each turn sets
before it reads them."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from programs import Program, loss_by_hand, network, norm_free, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.train import Session

EPOCHS = 3
Told = tuple[str, str]
HANDED_ON: dict[Program, Told] = {}
"""Programs whose weights depend on who had which turn: the attribute, and the line that changes it."""
PASSING: dict[str, Program] = {}
"""Programs that keep their bits."""


def hands_on(name: str, line: str) -> Callable[[Program], Program]:
    def add(function: Program) -> Program:
        HANDED_ON[function] = (name, line)
        return function

    return add


def passing(function: Program) -> Program:
    PASSING[function.__name__] = function
    return function


class Smoothed(nn.Module):
    """A loss that is not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.smoothing = 0.0

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y, label_smoothing=self.smoothing)


@hands_on("criterion.smoothing", "criterion.smoothing = 0.3")
def loss_switched_at_a_step(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    criterion = Smoothed()
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            if session.global_step == 6:
                criterion.smoothing = 0.3
            session.step(criterion(net(x), y))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.share = norm_free(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.net(F.dropout(x, self.share, self.training))


@hands_on("net.share", "net.share = 0.4")
def model_switched_at_a_step(session: Session) -> None:
    net = session.model(Dropping())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            if session.global_step == 6:
                net.share = 0.4
            session.step(F.cross_entropy(net(x), y))


@hands_on("net.share", "net.share = min(0.5, net.share + 0.02)")
def attribute_that_grows(session: Session) -> None:
    net = session.model(Dropping())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            net.share = min(0.5, net.share + 0.02)


@hands_on("net.share", "net.share += 0.02")
def attribute_of_a_callback(session: Session) -> None:
    net = session.model(Dropping())
    sgd(session, net)

    def more() -> None:
        net.share += 0.02

    session.on_commit(more)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


class Scaled(TensorDataset):
    scale = 1.0

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x * self.scale, y


@hands_on("data.scale", "data.scale = 0.5")
def rows_switched_at_a_step(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    data = Scaled(*rows().tensors)
    for _ in range(EPOCHS):
        for x, y in session.batches(data):
            if session.global_step == 6:
                data.scale = 0.5
            session.step(F.cross_entropy(net(x), y))


class Stateful(nn.Module):
    """A recurrent model that keeps its hidden state, and detaches it in the next batch."""

    hidden: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros(8) if self.hidden is None else self.hidden
        hidden = self.cell(x, before.detach().expand(len(x), 8))
        self.hidden = hidden.mean(0)
        return self.head(hidden)


@hands_on("net.hidden", "self.hidden = hidden.mean(0)")
def hidden_state_of_a_model(session: Session) -> None:
    net = session.model(Stateful())
    sgd(session, net)
    for _ in range(EPOCHS):
        net.hidden = None
        for x, y in session.batches(rows(), shuffle=False):
            session.step(F.cross_entropy(net(x), y))


class Agent:
    """Its target follows its weights at every fourth step."""

    def __init__(self, session: Session) -> None:
        self.session, self.net = session, session.model(norm_free())
        sgd(session, self.net)
        self.follow()

    def follow(self) -> None:
        self.target = [weight.detach().clone() for weight in self.net.parameters()]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.session.global_step % 4 == 0:
            self.follow()
        pairs = zip(self.net.parameters(), self.target, strict=True)
        return F.cross_entropy(self.net(x), y) + 0.3 * sum((p - q).square().sum() for p, q in pairs)


@hands_on("agent.target", "self.target = [weight.detach().clone() for weight in self.net.parameters()]")
def target_of_an_agent(session: Session) -> None:
    """One loop: nobody compares variables behind it."""
    agent = Agent(session)
    for x, y in session.batches(rows(count=120)):
        session.step(agent.loss(x, y))


class Translator:
    """`set_input`, `forward`, `loss`, with all that goes between them in attributes."""

    def __init__(self, session: Session) -> None:
        self.session, self.net = session, session.model(norm_free())
        self.optimizer = sgd(session, self.net)

    def set_input(self, batch: Any) -> None:
        self.real, self.label = batch

    def forward(self) -> None:
        self.share = float(torch.rand(()))
        self.fake = self.net(self.share * self.real)

    def loss(self) -> Tensor:
        self.newest = F.cross_entropy(self.fake, self.label) * (1 + self.share)
        return self.newest

    def fit(self) -> None:
        for self.epoch in range(EPOCHS):
            for batch in self.session.batches(rows()):
                self.set_input(batch)
                self.forward()
                self.session.step(self.loss())
            self.optimizer.param_groups[0]["lr"] *= 0.8


@passing
def steps_of_a_class(session: Session) -> None:
    Translator(session).fit()


class Featured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.cold = nn.Linear(6, 8), nn.Linear(8, 3), 1.0
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        features = self.drop(self.body(x).tanh())
        self.features = features.detach()
        return self.head(features) / self.cold


@passing
def attributes_by_step(session: Session) -> None:
    """A temperature, a rate of dropout and a weight by the step; features that the loss takes from the model."""
    net = session.model(Featured())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            net.cold = max(0.5, 2.0 * 0.9**session.global_step)
            for part in net.modules():
                if isinstance(part, nn.Dropout):
                    part.p = session.global_step / 40
            if session.global_step < 6:
                net.weight = 0.1
            else:
                net.weight = 0.2
            out = net(x)
            session.step(
                F.cross_entropy(out, y) + net.weight * (net.features @ net.head.weight.T).square().mean()
            )


class Referring:
    """A loss with a reference: the weights as they were when it was called first."""

    def __init__(self, net: nn.Module) -> None:
        self.net: nn.Module = net
        self.reference: nn.Module | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.reference is None:
            self.reference = copy.deepcopy(self.net).requires_grad_(False)
        out = self.net(x)
        return F.cross_entropy(out, y) + (out - self.reference(x)).square().mean()


def reference_made_in_the_first_turn(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    loss = Referring(net)
    for x, y in session.batches(rows(count=144)):
        session.step(loss(x, y))


class Anchored(nn.Module):
    """A criterion that is not registered, and has its anchor in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[Tensor] = []

    def forward(self, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if not self.anchors:
            self.anchors = [weight.detach().clone() for weight in net.parameters()]
        pairs = zip(net.parameters(), self.anchors, strict=True)
        return F.cross_entropy(net(x), y) + sum((p - q).square().sum() for p, q in pairs)


def anchors_of_a_criterion(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    criterion = Anchored()
    for x, y in session.batches(rows(count=144)):
        session.step(criterion(net, x, y))


def anchor_of_a_cached_function(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)

    @functools.cache
    def anchor() -> Tensor:
        return net[0].weight.detach().clone()

    for x, y in session.batches(rows(count=144)):
        session.step(F.cross_entropy(net(x), y) + 0.1 * (net[0].weight - anchor()).square().sum())


class Bound(nn.Module):
    """A table that each worker makes alike, and weights of classes in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.weights: dict[int, Tensor] = {}

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(1, 2, out.shape[1])
        if 3 not in self.weights:
            self.weights[3] = torch.tensor([0.5, 1.0, 1.5])
        return F.cross_entropy(out * self.table, y, weight=self.weights[3])


@passing
def tables_made_in_the_first_turn(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    criterion = Bound()
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(criterion(net(x), y))


MADE_OF_WEIGHTS = {
    "loss.reference.0.weight": reference_made_in_the_first_turn,
    "criterion.anchors[0]": anchors_of_a_criterion,
    "anchor()": anchor_of_a_cached_function,
}
"""Programs whose first turn keeps weights, by the name that a finding has."""


class Stopping:
    """Early stopping as scripts have it: the best score and its weights, by lines between loops."""

    def __init__(self, patience: int = 2) -> None:
        self.best: float | None = None
        self.state: dict[str, Tensor] = {}
        self.bad, self.patience = 0, patience

    def __call__(self, score: float, net: nn.Module) -> bool:
        if self.best is None or score < self.best:
            self.best, self.bad = score, 0
            self.state = {name: part.clone() for name, part in net.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience


def stopped_by_an_object(session: Session) -> None:
    net = session.model(network())
    sgd(session, net, lr=0.3)
    stopping = Stopping()
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        if stopping(loss_by_hand(net), net):
            break
    net.load_state_dict(stopping.state)
