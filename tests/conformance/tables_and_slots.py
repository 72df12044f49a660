"""Programs that keep tables, pools of buffers and names of several meanings beside their loops: those that keep their
bits, and those that look like them and hand something on."""

import math
from collections import defaultdict
from typing import Any

import torch
from programs import EPOCHS, Program, norm_free, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.train import Session

ONE_LOOP = 192
UNEVEN = 44
"""Rows whose last slices are shorter."""
HARMLESS: list[Program] = []
CARRYING: dict[Program, str] = {}
"""Programs, with the name of what they hand on."""


def harmless(function: Program) -> Program:
    HARMLESS.append(function)
    return function


def carries(name: str) -> Any:
    def add(function: Program) -> Program:
        CARRYING[function] = name
        return function

    return add


def model(session: Session) -> nn.Module:
    net = session.model(norm_free())
    sgd(session, net)
    return net


@harmless
def weights_by_length_in_a_dict(session: Session) -> None:
    net, weights = model(session), dict[int, float]()
    masks: dict[tuple[int, int], Tensor] = {}
    for _ in range(EPOCHS):
        for x, y in session.batches(rows(count=UNEVEN)):
            n = len(y)
            if (n, 6) not in masks:
                masks[n, 6] = torch.ones(n, 6).tril(3)
            weight = weights.setdefault(n, 1.0 / n)
            session.step(F.cross_entropy(net(x * masks[n, 6]), y, reduction="sum") * weight)


@harmless
def missing_entries_are_made_alike(session: Session) -> None:
    net, masks = model(session), defaultdict[int, Tensor](lambda: torch.ones(6))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows(count=UNEVEN)):
            session.step(F.cross_entropy(net(x * masks[len(y)]), y))


ENCODINGS: dict[tuple[int, int], Tensor] = {}


def encoding(n: int, width: int) -> Tensor:
    if (n, width) not in ENCODINGS:
        position = torch.arange(n).float()[:, None]
        rates = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        table = torch.zeros(n, width)
        table[:, 0::2] = torch.sin(position * rates)
        table[:, 1::2] = torch.cos(position * rates)
        ENCODINGS[n, width] = table
    return ENCODINGS[n, width]


class Windows:
    """Masks by length, of a width that is set once."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.masks: dict[int, Tensor] = {}

    def mask(self, n: int) -> Tensor:
        return self.masks.setdefault(n, torch.ones(n, n).triu(-self.width))


@harmless
def tables_of_a_file_and_of_an_object(session: Session) -> None:
    net, windows = model(session), Windows(1)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows(count=UNEVEN)):
            mixed = windows.mask(len(x)) @ x + 0.01 * encoding(len(x), 6)
            session.step(F.cross_entropy(net(mixed), y))


class Prefetcher:
    """Buffers by turns."""

    def __init__(self) -> None:
        self.pool = [torch.empty(3, 6) for _ in range(2)]
        self.turn = 0

    def stage(self, x: Tensor) -> Tensor:
        slot = self.pool[self.turn % len(self.pool)]
        slot[: len(x)].copy_(x)
        self.turn += 1
        return slot[: len(x)]


@harmless
def slots_of_a_pool(session: Session) -> None:
    net, pool, prefetcher = model(session), [torch.empty(3, 6) for _ in range(2)], Prefetcher()
    for _ in range(EPOCHS):
        for turn, (x, y) in enumerate(session.batches(rows())):
            pool[turn % 2].copy_(x)
            session.step(F.cross_entropy(net(prefetcher.stage(pool[turn % 2])), y))


@harmless
def functions_inside_that_share_names(session: Session) -> None:
    """The loss of the score decides, that of the loop is shown."""
    net = session.model(norm_free())
    optimizer = sgd(session, net)

    def train_one(number: int) -> float:
        loss, seen = 0.0, 0
        for x, y in session.batches(rows()):
            out = net(x)
            step_loss = F.cross_entropy(out, y)
            session.step(step_loss)
            loss += step_loss.item()
            seen += len(x)
        print(number, loss / seen)
        return loss / seen

    def evaluate() -> float:
        def score(batch: Any) -> dict[str, Tensor]:
            out = net(batch[0])
            return {"loss": F.cross_entropy(out, batch[1], reduction="none")}

        loss = session.evaluate(rows(1, 20), score)["loss"]
        return loss if loss < 9 else 9.0

    for number in range(EPOCHS):
        shown, loss = train_one(number), evaluate()
        print(shown)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + loss)


def two_results(
    session: Session, net: nn.Module, settings: dict[str, float]
) -> tuple[float, dict[str, float]]:
    total, turns = 0.0, 0
    for x, y in session.batches(rows()):
        loss = F.cross_entropy(net(x) / settings["heat"], y)
        session.step(loss)
        total, turns = total + loss.item(), turns + 1
    return total / turns, settings


@harmless
def a_mean_beside_what_matters(session: Session) -> None:
    net, settings = model(session), {"heat": 2.0}
    for _ in range(EPOCHS):
        shown, settings = two_results(session, net, settings)
        print(shown)


@carries("centres")
def what_is_met_first_under_a_key(session: Session) -> None:
    net, centres = model(session), dict[int, Tensor]()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        centre = centres.setdefault(int(y[0]), x.mean(0))
        session.step(F.cross_entropy(net(x - centre), y))


@carries("weights")
def table_that_its_readers_change(session: Session) -> None:
    net, weights = model(session), dict[int, Tensor]()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        weight = weights.setdefault(len(y), torch.ones(3))
        weight *= 0.9
        session.step(F.cross_entropy(net(x) * weight, y))


@carries("scales")
def table_of_what_a_loop_counts(session: Session) -> None:
    net, scales, met = model(session), dict[int, float](), 1.0
    for x, y in session.batches(rows(count=ONE_LOOP)):
        met += 1.0
        scale = scales.setdefault(int(y.sum()), 1.0 / met)
        session.step(F.cross_entropy(net(x) * scale, y))


@carries("pool")
def slot_that_is_read_before_it_is_filled(session: Session) -> None:
    net, pool = model(session), [torch.zeros(3, 6) for _ in range(2)]
    for x, y in session.batches(rows(count=ONE_LOOP)):
        out = net(x + 0.1 * pool[0])
        pool[0].copy_(x)
        session.step(F.cross_entropy(out, y))


@carries("pool")
def the_slot_of_the_turn_before(session: Session) -> None:
    net, pool = model(session), [torch.zeros(3, 6) for _ in range(2)]
    for turn, (x, y) in enumerate(session.batches(rows(count=ONE_LOOP))):
        pool[turn % 2].copy_(x)
        session.step(F.cross_entropy(net(x + 0.1 * pool[(turn + 1) % 2]), y))


@carries("heat")
def function_inside_that_goes_on(session: Session) -> None:
    net, heat = model(session), 1.0

    def criterion(out: Tensor, y: Tensor) -> Tensor:
        nonlocal heat
        heat *= 1.1
        return F.cross_entropy(out / heat, y)

    def shown() -> float:
        heat = 2.0
        return heat + 1

    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = criterion(net(x), y)
        session.step(loss)
    print(shown())


@harmless
def one_history_for_both(session: Session) -> None:
    """Its half of the validation stops early; that of the training is shown."""
    net, history, bad = model(session), defaultdict[str, list[float]](list), 0
    for _ in range(EPOCHS):
        sums, turns = {"loss": 0.0, "hits": 0.0}, 0
        for x, y in session.batches(rows()):
            out = net(x)
            loss = F.cross_entropy(out, y)
            session.step(loss)
            sums["loss"] += loss.item()
            sums["hits"] += float((out.argmax(1) == y).float().mean())
            turns += 1
        history["loss"].append(sums["loss"] / turns)
        history["hits"].append(sums["hits"] / turns)
        scores = session.evaluate(
            rows(1, 20), lambda batch: {"loss": F.cross_entropy(net(batch[0]), batch[1], reduction="none")}
        )
        history["val"].append(scores["loss"])
        print({name: values[-1] for name, values in history.items()})
        bad = bad + 1 if history["val"][-1] > min(history["val"]) else 0
        if bad == 2:
            break


@carries("state['heat']")
def entry_that_goes_on(session: Session) -> None:
    net, state = model(session), {"heat": 1.0, "shown": 0.0}
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x) / state["heat"], y)
        session.step(loss)
        state["heat"] *= 1.01
        state["shown"] += loss.item()
    print(state)


class Metric:
    """A mean that is called for its newest value, as metric classes are."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, out: Tensor, y: Tensor) -> float:
        self.note(float((out.argmax(1) == y).float().mean()))
        return self.compute()

    def note(self, value: float) -> None:
        self.values.append(value)

    def compute(self) -> float:
        return sum(self.values) / len(self.values)


class Metrics:
    """Metrics by name."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def __getitem__(self, name: str) -> Metric:
        return self.metrics[name]

    def update(self, name: str, value: float) -> None:
        if name not in self.metrics:
            self.metrics[name] = Metric()
        self.metrics[name].note(value)


@harmless
def metrics_of_training_and_of_validation(session: Session) -> None:
    """Those of the validation set the rate, those of the loop are shown."""
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    accuracies, metrics, validated = [Metric()], Metrics(), Metric()
    for _ in range(EPOCHS):
        for turn, (x, y) in enumerate(session.batches(rows())):
            out = net(x)
            loss = F.cross_entropy(out, y)
            session.step(loss)
            metrics.update("loss", loss.item())
            newest = [metric(out, y) for metric in accuracies]
            if turn % 2 == 0:
                message = f"{turn}: {metrics['loss'].compute():.3f} {newest}"
                for metric in accuracies:
                    message += f" {metric.compute():.3f}"
                print(message)
        hits = session.evaluate(rows(1, 20), lambda b: {"hit": (net(b[0]).argmax(1) == b[1]).float()})["hit"]
        validated.note(hits)
        optimizer.param_groups[0]["lr"] = 0.05 * (1.5 - validated.compute())


class Ramp:
    """Heats a network's outputs up, call by call."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.calls = net, 0

    def go_on(self) -> None:
        self.calls += 1
        self.net.heat = 1.0 + self.calls / 10  # type: ignore[assignment]


class Heated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heat = norm_free(), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / self.heat


@carries("ramp.calls")
def object_that_acts_on_another(session: Session) -> None:
    net = session.model(Heated())
    sgd(session, net)
    ramp = Ramp(net)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        ramp.go_on()
        session.step(F.cross_entropy(net(x), y))
