"""Programs that keep a count, a mean or an average where no variable of a running function shows it: in objects of
objects, slots, namespaces, classes, other files, iterators; and in functions that run with each step."""

import argparse
import itertools
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import torch
from programs import Program, epoch, norm_free, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from ringleader.train import Session

EPOCHS, ONE_LOOP = 3, 192
BY_ROWS: dict[Program, str] = {}
"""Programs that make something of the rows that a worker has seen, with its name."""
BY_STEPS: dict[Program, str] = {}
"""Programs in which a function that runs with each step goes by state of its own, with its name."""
HARMLESS: dict[str, Program] = {}
"""Programs that keep their bits."""


def by_rows(name: str) -> Callable[[Program], Program]:
    def add(function: Program) -> Program:
        BY_ROWS[function] = name
        return function

    return add


def by_steps(name: str) -> Callable[[Program], Program]:
    def add(function: Program) -> Program:
        BY_STEPS[function] = name
        return function

    return add


def harmless(function: Program) -> Program:
    HARMLESS[function.__name__] = function
    return function


class Meter:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def log(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    def average(self) -> float:
        return self.total / max(1, self.count)


@dataclass(slots=True)
class Settings:
    heat: float = 1.0
    count: int = 0


class Trainer:
    def __init__(self, session: Session) -> None:
        self.session, self.net = session, session.model(norm_free())
        sgd(session, self.net)
        self.meters, self.settings = {"loss": Meter()}, Settings()

    def train(self) -> None:
        for x, y in self.session.batches(rows()):
            loss = F.cross_entropy(self.net(x) / self.settings.heat, y)
            self.session.step(loss)
            self.meters["loss"].log(loss.item())


@by_rows("self.settings.heat")
def heat_by_a_meter_in_a_dict(session: Session) -> None:
    trainer = Trainer(session)
    for _ in range(EPOCHS):
        trainer.train()
        trainer.settings.heat = 0.5 + trainer.meters["loss"].average()
        trainer.meters["loss"] = Meter()


@by_rows("seen")
def rate_by_the_default_of_a_lambda(session: Session) -> None:
    """The lambda counts in a dict that no variable holds."""
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    note = lambda loss, seen={"sum": 0.0}: seen.update(sum=seen["sum"] + loss) or seen["sum"]  # noqa: E731
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + note(0.0))
        for loss in losses_of(session, net):
            note(loss)


@by_rows("seen")
def rate_by_the_default_of_a_function(session: Session) -> None:
    def note(loss: float, *, seen: list[float] = []) -> float:  # noqa: B006
        seen.append(loss)
        return sum(seen)

    net = session.model(norm_free())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + note(0.0))
        for loss in losses_of(session, net):
            note(loss)


class Heating:
    """A callback that collects losses, and sets a temperature behind each epoch."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.heat = 1.0

    def on_step(self, loss: float) -> None:
        self.seen.append(loss)

    def on_epoch(self) -> None:
        self.heat = 0.5 + sum(self.seen) / max(1, len(self.seen))
        self.seen = []


class Fit:
    def __init__(self, session: Session, callbacks: list[Any]) -> None:
        self.session, self.callbacks, self.net = session, callbacks, session.model(norm_free())
        sgd(session, self.net)

    def call(self, name: str, *given: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(*given)

    def fit(self) -> None:
        for _ in range(EPOCHS):
            for x, y in self.session.batches(rows()):
                loss = F.cross_entropy(self.net(x) / self.callbacks[0].heat, y)
                self.session.step(loss)
                self.call("on_step", loss.item())
            self.call("on_epoch")


@by_rows("self.callbacks[0].heat")
def heat_by_a_callback_in_a_list(session: Session) -> None:
    Fit(session, [Heating()]).fit()


class Options:
    heat = 1.0


@by_rows("Options.heat")
def heat_in_a_class_by_what_a_score_collects(session: Session) -> None:
    net, hits = session.model(norm_free()), list[bool]()
    sgd(session, net)
    Options.heat = 1.0

    def score(batch: Any) -> Any:
        hit = net(batch[0]).argmax(1) == batch[1]
        hits.extend(hit.tolist())
        return {"hit": hit}

    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x) / Options.heat, y))
        session.evaluate(rows(1, 20), score)
        Options.heat = 1 + sum(hits) / 100


@by_rows("options.heat")
def heat_by_a_sum_over_batches(session: Session) -> None:
    """The turns are those of a comprehension, in a function that has the options around it."""
    net, options = session.model(norm_free()), argparse.Namespace(heat=1.0)
    sgd(session, net)

    def trained(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(net(x) / options.heat, y)
        session.step(loss)
        return loss.item()

    for _ in range(EPOCHS):
        options.heat = 0.5 + sum(trained(x, y) for x, y in session.batches(rows())) / 10


@by_steps("state.count")
def count_in_a_namespace(session: Session) -> None:
    net, state = session.model(norm_free()), SimpleNamespace(count=0)
    sgd(session, net)

    def more() -> None:
        state.count += 1

    session.on_commit(more)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x), y) * min(1.0, (1 + state.count) / 20))


@by_steps("count")
def count_around_a_callback(session: Session) -> None:
    net, count = session.model(norm_free()), 0
    sgd(session, net)

    def more() -> None:
        nonlocal count
        count += 1

    session.on_commit(more)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x), y) * min(1.0, (1 + count) / 20))


class Lookahead:
    """Every third step the weights go back to slow ones."""

    __slots__ = ("count", "net", "slow")

    def __init__(self, net: nn.Module) -> None:
        self.net, self.slow, self.count = net, [p.detach().clone() for p in net.parameters()], 0

    @torch.no_grad()
    def __call__(self) -> None:
        self.count += 1
        if self.count % 3 == 0:
            for slow, weight in zip(self.slow, self.net.parameters(), strict=True):
                slow.lerp_(weight, 0.5)
                weight.copy_(slow)


@by_steps("Lookahead.count")
def lookahead(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    session.on_commit(Lookahead(net))
    epoch(session, net, rows(count=ONE_LOOP))


@by_steps("count")
def clamped_by_a_hook(session: Session) -> None:
    net, count = session.model(norm_free()), 0
    optimizer = sgd(session, net)

    @torch.no_grad()
    def clamp(*_: Any) -> None:
        nonlocal count
        count += 1
        if count % 4 == 0:
            for weight in net.parameters():
                weight.clamp_(-0.2, 0.2)

    optimizer.register_step_post_hook(clamp)
    epoch(session, net, rows(count=ONE_LOOP))


@by_steps("rates")
def rates_of_an_iterator(session: Session) -> None:
    net, rates = session.model(norm_free()), iter([1 - n / 20 for n in range(20)])
    session.scheduler(LambdaLR(sgd(session, net), lambda _: next(rates)))
    epoch(session, net, rows(count=ONE_LOOP))


@by_steps("calls")
def rates_by_a_count_of_calls(session: Session) -> None:
    net, calls = session.model(norm_free()), itertools.count()
    session.scheduler(LambdaLR(sgd(session, net), lambda _: 0.9 ** next(calls)))
    epoch(session, net, rows(count=ONE_LOOP))


class Shown:
    """A meter whose mean is only printed."""

    def __init__(self) -> None:
        self.sum, self.turns = 0.0, 0

    def add(self, value: float) -> None:
        self.sum, self.turns = self.sum + value, self.turns + 1

    def line(self) -> str:
        return f"{self.sum / max(1, self.turns):.3f}"


@harmless
def meters_that_are_shown(session: Session) -> None:
    net, args = session.model(norm_free()), argparse.Namespace(decay=0.9, rate=0.05)
    optimizer, meters = sgd(session, net), {"loss": Shown(), "rate": Shown()}
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            session.step(loss)
            meters["loss"].add(loss.item())
        print({name: meter.line() for name, meter in meters.items()})
        args.rate *= args.decay
        optimizer.param_groups[0]["lr"] = args.rate
        meters["rate"].add(args.rate)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = norm_free()
        self.register_buffer("center", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) - self.center


@by_steps("net.center")
def buffer_that_is_not_saved(session: Session) -> None:
    net = session.model(Centred())
    sgd(session, net)

    @torch.no_grad()
    def follow() -> None:
        net.center.lerp_(net.net[2].bias, 0.3)

    session.on_commit(follow)
    epoch(session, net, rows(count=ONE_LOOP))


class Forgetful:
    """An average with a count that its `state_dict` leaves out. Implements Stateful."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.updates = net, 0
        self.mean = {name: p.detach().clone() for name, p in net.named_parameters()}

    def update(self) -> None:
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for name, weight in self.net.named_parameters():
            self.mean[name] = self.mean[name] * decay + weight.detach() * (1 - decay)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.mean)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = dict(state)


@by_steps("Forgetful.updates")
def kept_average_that_forgets_its_count(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    average = Forgetful(net)
    session.keep("average", average)
    session.on_commit(average.update)
    epoch(session, net, rows(count=ONE_LOOP))
    net.load_state_dict(average.mean)


@by_steps("CosineAnnealingLR")
def schedule_stepped_by_a_callback(session: Session) -> None:
    net = session.model(norm_free())
    session.on_commit(CosineAnnealingLR(sgd(session, net), 16).step)
    epoch(session, net, rows(count=ONE_LOOP))


@by_steps("count")
def step_in_place_of_another(session: Session) -> None:
    net, count = session.model(norm_free()), 0
    optimizer = sgd(session, net)
    own = optimizer.step

    def step(*given: Any) -> Any:
        nonlocal count
        count += 1
        for weight in net.parameters():
            if weight.grad is not None:
                weight.grad.mul_(min(1.0, count / 10))
        return own(*given)

    optimizer.step = step  # type: ignore[method-assign]
    epoch(session, net, rows(count=ONE_LOOP))


@harmless
def clamped_by_a_hook_without_state(session: Session) -> None:
    net = session.model(norm_free())
    optimizer = sgd(session, net)

    @torch.no_grad()
    def clamp(*_: Any) -> None:
        for weight in net.parameters():
            weight.clamp_(-0.3, 0.3)

    optimizer.register_step_post_hook(clamp)
    scale = [1.0]
    session.scheduler(LambdaLR(optimizer, lambda step: scale[0] / (1 + 0.1 * step)))
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        scale[0] *= 0.5 + (session.loss or 0.0) / 10


@harmless
def losses_of_callbacks_that_are_shown(session: Session) -> None:
    net, losses = session.model(norm_free()), list[float]()
    sgd(session, net)
    session.on_commit(lambda: losses.append(session.loss or 0.0))
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        print(len(losses), losses[-1:])


factor: ContextVar[float] = ContextVar("factor", default=1.0)
own = threading.local()


def losses_of(session: Session, net: nn.Module) -> list[float]:
    """Those of the slices that this worker has."""
    losses = []
    for x, y in session.batches(rows()):
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        losses.append(loss.item())
    return losses


def score_of(session: Session, net: nn.Module) -> float:
    hits = session.evaluate(rows(1), lambda batch: {"hit": (net(batch[0]).argmax(1) == batch[1]).float()})
    return hits["hit"]


@by_rows("factor")
def rate_by_a_context_variable(session: Session) -> None:
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    factor.set(1.0)
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 / factor.get()
        losses = losses_of(session, net)
        factor.set(1 + sum(losses))


@by_rows("noted")
def rate_by_a_buffer(session: Session) -> None:
    net = session.model(norm_free())
    optimizer, noted = sgd(session, net), BytesIO(b"1.0")
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 / float(noted.getvalue())
        losses = losses_of(session, net)
        noted.seek(0)
        noted.write(b"%.6f" % (1 + sum(losses)))


@by_rows("own")
def rate_by_a_value_of_the_thread(session: Session) -> None:
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    own.factor = 1.0
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 / own.factor
        losses = losses_of(session, net)
        own.factor = 1 + sum(losses)


@harmless
def rate_in_a_context_variable(session: Session) -> None:
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    factor.set(1.0)
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 * factor.get()
        epoch(session, net, rows())
        factor.set(factor.get() * (1.2 - score_of(session, net)))


@harmless
def best_weights_in_a_buffer(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    best, saved, scores = -1.0, BytesIO(), bytearray()
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        score = score_of(session, net)
        scores.append(int(100 * score))
        if score > best:
            best, saved = score, BytesIO()
            torch.save(net.state_dict(), saved)
    saved.seek(0)
    net.load_state_dict(torch.load(saved))
    with torch.no_grad():
        net[0].weight *= 1 + sum(scores) / 1000


@harmless
def rate_in_a_value_of_the_thread(session: Session) -> None:
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    own.factor = 1.0
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 * own.factor
        epoch(session, net, rows())
        own.factor *= 1.2 - score_of(session, net)


class Scaled:
    """Rows times their level, in an order."""

    def __init__(self) -> None:
        self.rows, self.level = rows(), 1.0
        self.order = list(range(len(self.rows)))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, row: int) -> Any:
        x, y = self.rows[self.order[row]]
        return x * self.level, y


@harmless
def data_set_changed_by_scores(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    data = Scaled()
    for _ in range(EPOCHS):
        epoch(session, net, data)
        data.level *= 1.5 - score_of(session, net)
        data.order = sorted(data.order, key=lambda row: float(data.rows[row][0].sum()) * data.level)[12:]


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(6, 8), nn.utils.weight_norm(nn.Linear(8, 3, bias=False))
        self.apply(self._init_weights)

    def _init_weights(self, layer: nn.Module) -> None:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).relu())


def log_every(batches: Any, number: int) -> Any:
    seconds = Meter()
    start = end = time.time()
    for place, batch in enumerate(batches):
        yield batch
        seconds.log(time.time() - end)
        if place % number == 0:
            print(place, seconds.average())
        end = time.time()
    print(time.time() - start)


@harmless
def student_and_kept_teacher(session: Session) -> None:
    """As DINO has them: a head with weight normalisation, a teacher that is frozen by name, and times of turns."""
    student, teacher = session.model(Head()), Head()
    sgd(session, student)
    teacher.load_state_dict(student.state_dict())
    for p in teacher.parameters():
        p.requires_grad = False
    session.keep("teacher", teacher)

    @torch.no_grad()
    def average() -> None:
        for ours, theirs in zip(student.parameters(), teacher.parameters(), strict=True):
            theirs.data.mul_(0.9).add_(ours.detach().data, alpha=0.1)

    session.on_commit(average)
    for _ in range(EPOCHS):
        for x, y in log_every(session.batches(rows()), 2):
            session.step(F.cross_entropy(student(x), y) + F.mse_loss(student(x), teacher(x)))
