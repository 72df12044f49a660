"""Programs whose loop's body changes, by means that its text does not show, what a later turn goes on from; and some
that only look so."""

import bisect
import heapq
import itertools
import operator
import random
from collections import deque
from collections.abc import Callable, Generator
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from programs import Program, norm_free, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.train import Session

UNSEEN: dict[Program, str] = {}
"""By program, the name of what it carries."""
HARMLESS: list[Program] = []
ONE_LOOP = 96


def carries(name: str) -> Callable[[Program], Program]:
    def add(function: Program) -> Program:
        UNSEEN[function] = name
        return function

    return add


def harmless(function: Program) -> Program:
    HARMLESS.append(function)
    return function


def model(session: Session) -> nn.Module:
    net = session.model(norm_free())
    sgd(session, net)
    return net


@carries("seen")
def median_of_a_heap(session: Session) -> None:
    net, seen = model(session), [1.0]
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss * seen[0])
        heapq.heappush(seen, loss.item())


@carries("seen")
def median_of_a_sorted_list(session: Session) -> None:
    net, seen = model(session), [1.0]
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        bisect.insort(seen, loss.item())
        session.step(loss / seen[len(seen) // 2])


@carries("counts")
def counts_of_labels(session: Session) -> None:
    net, counts = model(session), np.ones(3)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        weight = torch.tensor(counts / counts.sum(), dtype=torch.float32)
        session.step(F.cross_entropy(net(x), y, weight=weight))
        np.add.at(counts, y.numpy(), 1)


@carries("counts")
def counts_given_as_out(session: Session) -> None:
    net, counts = model(session), torch.ones(3)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x), y, weight=counts))
        torch.add(counts, torch.bincount(y, minlength=3), out=counts)


@carries("scale")
def scale_copied_into_an_array(session: Session) -> None:
    net, scale = model(session), np.ones(1)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss * float(scale[0]))
        np.copyto(scale, 0.9 * scale + 0.1 * loss.item())


@carries("seen")
def list_added_to_by_an_operator(session: Session) -> None:
    net, seen = model(session), [1.0]
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss * sum(seen) / len(seen))
        operator.iadd(seen, [loss.item()])


@carries("heats")
def heats_in_turn(session: Session) -> None:
    net, heats = model(session), deque([0.5, 1.0, 1.5])
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x) / heats[0], y))
        heats.rotate(1)


@carries("state.heat")
def heat_set_by_name(session: Session) -> None:
    net, state, names = model(session), SimpleNamespace(heat=1.0), ["heat"]
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x) / state.heat, y)
        session.step(loss)
        for name in names:
            setattr(state, name, 1 + loss.item())


@carries("average")
def average_of_a_generator(session: Session) -> None:
    def averages(value: float) -> Generator[float, float, None]:
        while True:
            value = 0.9 * value + 0.1 * (yield value)

    net, average = model(session), averages(1.0)
    next(average)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss / average.send(loss.item()))


@carries("seen")
def default_argument(session: Session) -> None:
    def scaled(loss: Tensor, seen: list[float] = []) -> Tensor:  # noqa: B006 - as people write it
        seen.append(loss.item())
        return loss * len(seen) / sum(seen)

    net = model(session)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(scaled(F.cross_entropy(net(x), y)))


def scaling() -> Callable[[Tensor], Tensor]:
    mean = [1.0]

    def scaled(loss: Tensor) -> Tensor:
        mean[0] = 0.9 * mean[0] + 0.1 * loss.item()
        return loss / mean[0]

    return scaled


@carries("mean")
def closure_of_a_function_made_elsewhere(session: Session) -> None:
    net, scaled = model(session), scaling()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(scaled(F.cross_entropy(net(x), y)))


@carries("scaled")
def list_in_a_partial(session: Session) -> None:
    def by_mean(seen: list[float], loss: Tensor) -> Tensor:
        seen.append(loss.item())
        return loss * len(seen) / sum(seen)

    net, scaled = model(session), partial(by_mean, [1.0])
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(scaled(F.cross_entropy(net(x), y)))


@carries("scaled")
def generator_in_a_partial(session: Session) -> None:
    def by_draw(x: Tensor, draw: random.Random) -> Tensor:
        return x * draw.uniform(0.9, 1.1)

    net, scaled = model(session), partial(by_draw, draw=random.Random(5))
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(scaled(x)), y))


def ramped(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    calls = itertools.count(1)

    @wraps(function)
    def ramp(*given: Tensor) -> Tensor:
        return function(*given) * min(1.0, next(calls) / 30)

    return ramp


@carries("calls")
def decorator_that_counts(session: Session) -> None:
    net, criterion = model(session), ramped(F.cross_entropy)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(criterion(net(x), y))


class Smoothed:
    def __call__(self, loss: Tensor, seen: list[float] = []) -> Tensor:  # noqa: B006 - as people write it
        seen.append(loss.item())
        return loss * len(seen) / sum(seen)


@carries("seen")
def default_argument_of_a_method(session: Session) -> None:
    net, smoothed = model(session), Smoothed()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(smoothed(F.cross_entropy(net(x), y)))


@carries("norms")
def hook_of_a_tensor(session: Session) -> None:
    net, norms = model(session), [1.0]

    def normalise(gradient: Tensor) -> Tensor:
        norms.append(0.9 * norms[-1] + 0.1 * float(gradient.norm()))
        return gradient / norms[-1]

    for x, y in session.batches(rows(count=ONE_LOOP)):
        out = net(x)
        out.register_hook(normalise)
        session.step(F.cross_entropy(out, y))


@carries("count")
def collate_that_counts(session: Session) -> None:
    net, count = model(session), [0]

    def collate(given: list[Any]) -> Any:
        count[0] += 1
        x, y = zip(*given, strict=True)
        return torch.stack(x) * (1 + 0.1 * count[0]), torch.stack(y)

    for x, y in session.batches(rows(count=ONE_LOOP), collate=collate):
        session.step(F.cross_entropy(net(x), y))


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(6, 3), list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        out: Tensor = self.linear(x)
        return out / (1 + 0.05 * len(self.calls))


@carries("net.calls")
def forward_that_fills_a_list(session: Session) -> None:
    net = session.model(Calls())
    sgd(session, net)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x), y))


@carries("heats")
def iterator_in_a_helper(session: Session) -> None:
    net, heats = model(session), itertools.cycle([0.5, 1.0, 1.5])

    def heat() -> float:
        return next(heats)

    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x) / heat(), y))


class Ramp:
    def __init__(self) -> None:
        self.reads = 0

    @property
    def weight(self) -> float:
        self.reads += 1
        return min(1.0, self.reads / 30)


@carries("ramp.reads")
def property_that_counts(session: Session) -> None:
    net, ramp = model(session), Ramp()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x), y) * ramp.weight)


def note(counts: dict[int, int], y: Tensor) -> None:
    for label in y.tolist():
        counts[label] += 1


@carries("counts")
def counts_by_a_helper(session: Session) -> None:
    net, counts = model(session), dict.fromkeys(range(3), 1)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        note(counts, y)
        weight = torch.tensor([1 / count for count in counts.values()])
        session.step(F.cross_entropy(net(x), y, weight=weight))


@harmless
def noise_drawn_into_a_kept_tensor(session: Session) -> None:
    net, noise = model(session), torch.zeros(6)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        noise.normal_()
        session.step(F.cross_entropy(net(x + 0.1 * noise), y))


@harmless
def rows_copied_into_a_kept_tensor(session: Session) -> None:
    net, given, doubled = model(session), torch.zeros(12, 6), torch.zeros(12, 6)
    labels = np.zeros(12, dtype=int)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        given.zero_()
        given[: len(x)] = x
        torch.mul(given, 2.0, out=doubled)
        np.copyto(labels, np.resize(y.numpy(), 12))
        session.step(F.cross_entropy(net(doubled[: len(x)]), torch.from_numpy(labels[: len(y)].copy())))


@harmless
def shown_by_a_heap(session: Session) -> None:
    net, hardest, counts = model(session), list[float](), dict.fromkeys(range(3), 0)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        heapq.heappush(hardest, -loss.item())
        note(counts, y)
        if session.global_step % 4 == 0:
            print(hardest[:3], counts)


@harmless
def nested_functions_that_have_names_of_the_loop(session: Session) -> None:
    net, weights = model(session), [0.5, 1.0, 1.5]

    def criterion(out: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(out, y, torch.tensor(weights))
        return loss if loss.isfinite() else loss * 0

    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = criterion(net(x), y)
        session.step(loss)


@harmless
def losses_collected_as_steps_commit(session: Session) -> None:
    net, losses = model(session), list[float]()
    session.on_commit(lambda: losses.append(session.loss or 0.0))
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x), y))
    print(len(losses), losses[-1:])


@harmless
def sum_over_an_ensemble(session: Session) -> None:
    nets, weights = [session.model(norm_free()) for _ in range(2)], [0.4, 0.6]
    session.optimizer(torch.optim.SGD([p for net in nets for p in net.parameters()], lr=0.05))
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(sum(w * F.cross_entropy(net(x), y) for w, net in zip(weights, nets, strict=True)))


@harmless
def tables_that_are_made_once(session: Session) -> None:
    net, table, settled = model(session), dict[int, Tensor](), partial(F.cross_entropy, label_smoothing=0.1)

    def ramp(count: int) -> Tensor:
        if count not in table:
            table[count] = torch.linspace(0.9, 1.1, count)[:, None]
        return table[count]

    def collate(given: list[Any]) -> Any:
        x, y = zip(*given, strict=True)
        return torch.stack(x), torch.stack(y)

    for x, y in session.batches(rows(count=ONE_LOOP - 3), collate=collate):
        session.step(settled(net(x * ramp(len(x))), y))


class Window:
    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=5)
        self.total, self.count = 0.0, 0

    def update(self, loss: float) -> None:
        self.losses.append(loss)
        self.total, self.count = self.total + loss, self.count + 1

    @property
    def mean(self) -> float:
        return self.total / self.count


@harmless
def meter_with_a_property_that_is_shown(session: Session) -> None:
    net, meter = model(session), Window()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        meter.update(loss.item())
        print(f"{meter.mean:.3f} {list(meter.losses)[-1]:.3f}")


@harmless
def penalty_of_large_weights_in_a_list(session: Session) -> None:
    net = session.model(nn.Sequential(nn.Linear(6, 8192), nn.Linear(8192, 3)))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1e-4))
    weights = list(net.parameters())
    named = dict(net.named_parameters())
    first = net[0].weight.detach()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        penalty = sum(weight.pow(2).mean() for weight in weights)
        loss = F.cross_entropy(torch.func.functional_call(net, named, (x,)), y)
        session.step(loss + 1e-4 * (penalty + first.abs().mean()))
