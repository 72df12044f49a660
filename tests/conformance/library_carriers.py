"""Programs whose loop's body goes on from what objects of Python's library, or a data set, hold; and some that only
look so."""

import copy
import io
import struct
import sys
from contextvars import ContextVar
from typing import Any

import numpy as np
import pandas
import torch
from programs import EPOCHS, rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from unseen_carriers import HARMLESS, ONE_LOOP, UNSEEN, carries, harmless, model

from ringleader.train import Session

__all__ = ["HARMLESS", "UNSEEN"]


@carries("heat")
def heat_in_a_context_variable(session: Session) -> None:
    net, heat = model(session), ContextVar("heat", default=1.0)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss * heat.get())
        heat.set(0.9 * heat.get() + 0.1 * loss.item())


@carries("kept")
def mean_in_a_buffer_of_bytes(session: Session) -> None:
    net, kept = model(session), io.BytesIO(struct.pack("d", 1.0))
    for x, y in session.batches(rows(count=ONE_LOOP)):
        (mean,) = struct.unpack("d", kept.getvalue())
        loss = F.cross_entropy(net(x), y)
        session.step(loss / mean)
        kept.seek(0)
        kept.write(struct.pack("d", 0.9 * mean + 0.1 * loss.item()))


@carries("kept")
def mean_in_a_buffer_of_text(session: Session) -> None:
    net, kept = model(session), io.StringIO("1.0")
    for x, y in session.batches(rows(count=ONE_LOOP)):
        mean = float(kept.getvalue())
        loss = F.cross_entropy(net(x), y)
        session.step(loss / mean)
        kept.seek(0)
        kept.write(repr(0.9 * mean + 0.1 * loss.item()))


HERE: Any = sys.modules[__name__]
HERE.SCALE = 1.0


@carries("HERE.SCALE")
def scale_set_in_a_file_from_outside(session: Session) -> None:
    net, HERE.SCALE = model(session), 1.0
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = F.cross_entropy(net(x), y)
        session.step(loss * HERE.SCALE)
        HERE.SCALE = 0.9 * HERE.SCALE + 0.1 * loss.item()


@carries("weights")
def weights_of_labels_in_a_series(session: Session) -> None:
    net, weights = model(session), pandas.Series([1.0, 1.0, 1.0])
    for x, y in session.batches(rows(count=ONE_LOOP)):
        weight = torch.tensor(weights.to_numpy(), dtype=torch.float32)
        session.step(F.cross_entropy(net(x), y, weight=weight))
        weights.loc[int(y[0])] *= 0.9


@harmless
def losses_written_to_a_buffer(session: Session) -> None:
    net, log = model(session), io.StringIO()
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            session.step(loss)
            log.write(f"{loss.item():.3f}\n")
        print(log.getvalue()[:5])


class Weighted(Dataset[Any]):
    """Rows with weights."""

    def __init__(self) -> None:
        self.rows, self.weights = rows(count=ONE_LOOP), torch.ones(ONE_LOOP)
        self.levels = np.ones(ONE_LOOP)
        self._rescaled = np.zeros(6, dtype=np.float32)
        self._read: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor, int]:
        x, y = self.rows[row]
        if row not in self._read:
            self._read[row] = x
        np.copyto(self._rescaled, self._read[row].numpy() * self.levels[row])
        return torch.from_numpy(self._rescaled.copy()), y, self.weights[row], row


def decay(data: Weighted, taken: Tensor) -> None:
    data.weights.index_add_(0, (taken + 1) % ONE_LOOP, torch.full((len(taken),), -0.01))


@carries("data.weights")
def weights_of_a_data_set_by_a_helper(session: Session) -> None:
    net, data = model(session), Weighted()
    for x, y, weights, taken in session.batches(data):
        session.step((F.cross_entropy(net(x), y, reduction="none") * weights).mean())
        decay(data, taken)


@carries("data.levels")
def levels_of_a_data_set_by_another_name(session: Session) -> None:
    net, data = model(session), Weighted()
    levels = data.levels
    for x, y, weights, taken in session.batches(data):
        session.step((F.cross_entropy(net(x), y, reduction="none") * weights).mean())
        levels[taken.numpy()] *= 0.9


@carries("data.tensors")
def rows_that_shrink(session: Session) -> None:
    net, data = model(session), rows(count=ONE_LOOP)
    points = data.tensors[0]
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))
        points *= 0.99


@harmless
def data_set_that_fills_as_it_is_read(session: Session) -> None:
    net, data = model(session), Weighted()
    for _ in range(2):
        for x, y, weights, _ in session.batches(data):
            session.step((F.cross_entropy(net(x), y, reduction="none") * weights).mean())


@harmless
def data_set_that_is_changed_between_loops(session: Session) -> None:
    net, data = model(session), Weighted()
    for _ in range(3):
        for x, y, weights, _ in session.batches(data):
            session.step((F.cross_entropy(net(x), y, reduction="none") * weights).mean())
        data.levels *= 0.9
        data.weights[: len(data) // 2] *= 0.8


@carries("stats")
def mean_of_a_hook_that_the_loss_reads(session: Session) -> None:
    net, stats = model(session), {"mean": torch.zeros(())}

    def track(_module: nn.Module, _given: Any, out: Tensor) -> None:
        stats["mean"] = 0.9 * stats["mean"] + 0.1 * out.detach().abs().mean()

    net[0].register_forward_hook(track)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        out = net(x)
        session.step(F.cross_entropy(out, y) * (1 + stats["mean"]))


class Endless:
    """Batches of a loader, from its begin again once it ends."""

    def __init__(self) -> None:
        self.loader = DataLoader(rows(5), batch_size=12, shuffle=True)
        self.iterator = iter(self.loader)

    def sample(self) -> Any:
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)

    def next(self) -> tuple[int, int]:
        return 0, 1


@carries("more.iterator")
def loader_in_an_object(session: Session) -> None:
    net, more = model(session), Endless()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        other, labels = more.sample()
        session.step(F.cross_entropy(net(x), y) + F.cross_entropy(net(other), labels))


@harmless
def batches_of_a_loader_that_are_shown(session: Session) -> None:
    net, more = model(session), Endless()
    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(F.cross_entropy(net(x), y))
        print(more.sample()[1])


@harmless
def penalty_that_hooks_sum_up_in_each_turn(session: Session) -> None:
    net, penalty = model(session), {"sum": torch.zeros(())}

    def add(_module: nn.Module, _given: Any, out: Tensor) -> None:
        penalty["sum"] = penalty["sum"] + out.pow(2).mean()

    def begin(_module: nn.Module, _given: Any) -> None:
        penalty["sum"] = torch.zeros(())

    net.register_forward_pre_hook(begin)
    for layer in (net[0], net[2]):
        layer.register_forward_hook(add)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        out = net(x)
        session.step(F.cross_entropy(out, y) + 0.01 * penalty["sum"])


class Centred:
    """Batches of the session, moved."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __iter__(self) -> "Centred":
        self.iterator = iter(self.session.batches(rows(count=ONE_LOOP)))
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        x, y = next(self.iterator)
        return x - 0.1, y


@harmless
def batches_of_the_session_in_an_object(session: Session) -> None:
    net, batches = model(session), Centred(session)
    for x, y in batches:
        session.step(F.cross_entropy(net(x), y))


@harmless
def penalty_that_each_turn_begins_anew(session: Session) -> None:
    net, penalty = model(session), {"sum": torch.zeros(())}

    def add(_module: nn.Module, _given: Any, out: Tensor) -> None:
        penalty["sum"] = penalty["sum"] + out.pow(2).mean()

    for layer in (net[0], net[2]):
        layer.register_forward_hook(add)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        penalty["sum"] = torch.zeros(())
        out = net(x)
        session.step(F.cross_entropy(out, y) + 0.01 * penalty["sum"])


@carries("state")
def entry_that_is_begun_anew_beside_another(session: Session) -> None:
    net, state = model(session), {"sum": torch.zeros(()), "mean": torch.zeros(())}

    def add(_module: nn.Module, _given: Any, out: Tensor) -> None:
        state["sum"] = state["sum"] + out.pow(2).mean()
        state["mean"] = 0.9 * state["mean"] + 0.1 * out.detach().abs().mean()

    net[0].register_forward_hook(add)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        state["sum"] = torch.zeros(())
        out = net(x)
        session.step(F.cross_entropy(out, y) * (1 + state["mean"]) + 0.01 * state["sum"])


@harmless
def loss_that_an_inner_function_sets_and_gives(session: Session) -> None:
    net, last = model(session), torch.tensor(0.0)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        nonlocal last
        last = F.cross_entropy(net(x), y)
        return last

    for _ in range(EPOCHS):
        for x, y in session.batches(rows(count=ONE_LOOP)):
            session.step(closure(x, y))
        print(last)


@carries("mixed")
def loss_that_an_inner_function_reads_before_it_sets_it(session: Session) -> None:
    net, mixed = model(session), torch.tensor(0.0)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        nonlocal mixed
        weight = 1 + 0.1 * mixed
        mixed = F.cross_entropy(net(x), y).detach()
        return weight * F.cross_entropy(net(x), y)

    for x, y in session.batches(rows(count=ONE_LOOP)):
        session.step(closure(x, y))


@carries("more")
def loader_beside_a_class_with_a_method_next(session: Session) -> None:
    net, more = model(session), iter(DataLoader(rows(5, 480), batch_size=3))
    for x, y in session.batches(rows(count=ONE_LOOP)):
        other, _ = next(more)
        session.step(F.cross_entropy(net(x), y) + net(other).pow(2).mean())


@harmless
def copies_trained_in_each_turn(session: Session) -> None:
    """MAML of first order: a copy of the model learns from each half of the slice, and is thrown away."""
    net = model(session)
    for x, y in session.batches(rows(count=ONE_LOOP)):
        loss = torch.zeros(())
        for part in range(2):
            fast = copy.deepcopy(net)
            F.cross_entropy(fast(x[part : part + 1]), y[part : part + 1]).backward()
            torch.optim.SGD(fast.parameters(), lr=0.1).step()
            slopes = torch.autograd.grad(F.cross_entropy(fast(x), y), [*fast.parameters()])
            loss = loss + sum((p * g).sum() for p, g in zip(net.parameters(), slopes, strict=True))
        session.step(loss)


@carries("average")
def average_named_in_each_turn(session: Session) -> None:
    net = model(session)
    held = {"average": copy.deepcopy(net).requires_grad_(False)}
    for x, y in session.batches(rows(count=ONE_LOOP)):
        average = held["average"]
        session.step(F.cross_entropy(net(x), y) + F.mse_loss(net(x), average(x)))
        for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
            mean.lerp_(weight.detach(), 0.1)
