"""Training functions as people write them: what their own lines do between loops ends up in the weights.

Each takes a few loops of a few steps. None knows anything of workers that come and go.
"""

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from ringleader.train import Session

ROWS, BATCH, SHARDS, EPOCHS = 48, 12, 4, 4
STEPS = EPOCHS * ROWS // BATCH

Program = Callable[[Session], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def rows(seed: int = 0, count: int = ROWS) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 6, generator=draw)
    return TensorDataset(points, (points[:, 0] + points[:, 1] > 0).long() + (points[:, 2] > 1).long())


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def sgd(session: Session, net: nn.Module, lr: float = 0.05) -> torch.optim.SGD:
    return session.optimizer(torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9))


def epoch(session: Session, net: nn.Module, data: Any) -> None:
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))


def accuracy(session: Session, net: nn.Module) -> float:
    return session.evaluate(
        rows(1, 20), lambda batch: {"hit": (net(batch[0]).argmax(1) == batch[1]).float()}
    )["hit"]


def loss_by_hand(net: nn.Module) -> float:
    """What people write themselves: a loader of their own, eval mode, no session."""
    net.eval()
    total = 0.0
    device = next(net.parameters()).device
    with torch.no_grad():
        for x, y in DataLoader(rows(1, 20), batch_size=8):
            total += F.cross_entropy(net(x.to(device)), y.to(device), reduction="sum").item()
    net.train()
    return total / 20


@program
def schedule_by_hand(session: Session) -> None:
    net = session.model(network())
    schedule = StepLR(sgd(session, net), 1, gamma=0.7)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        schedule.step()


@program
def cosine_by_hand(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    schedule = CosineAnnealingLR(optimizer, EPOCHS)
    for number in range(EPOCHS):
        epoch(session, net, rows())
        schedule.step()
        print(number, optimizer.param_groups[0]["lr"])


@program
def plateau(session: Session) -> None:
    net = session.model(network())
    schedule = ReduceLROnPlateau(sgd(session, net), patience=0, factor=0.5, threshold=10.0)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        schedule.step(accuracy(session, net))


@program
def plateau_of_a_loss_by_hand(session: Session) -> None:
    net = session.model(network())
    schedule = ReduceLROnPlateau(sgd(session, net), patience=0, factor=0.5, threshold=0.5)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        schedule.step(loss_by_hand(net))


@program
def rate_divided_on_a_plateau(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    best, bad = 0.0, 0
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        score = accuracy(session, net)
        best, bad = (score, 0) if score > best + 0.2 else (best, bad + 1)
        if bad:
            for group in optimizer.param_groups:
                group["lr"] /= 4


@program
def best_weights_in_a_variable(session: Session) -> None:
    net = session.model(network())
    sgd(session, net, lr=0.3)
    best, best_state = -1.0, copy.deepcopy(net.state_dict())
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        score = accuracy(session, net)
        if score > best:
            best, best_state = score, copy.deepcopy(net.state_dict())
    net.load_state_dict(best_state)


@program
def best_weights_by_a_loss_by_hand(session: Session) -> None:
    net = session.model(network())
    sgd(session, net, lr=0.3)
    best: tuple[float, dict[str, Tensor]] = (1e9, {})
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        loss = loss_by_hand(net)
        if loss < best[0]:
            best = (loss, {name: value.clone() for name, value in net.state_dict().items()})
    net.load_state_dict(best[1])


@program
def best_weights_without_a_copy(session: Session) -> None:
    """A slip: a state dict holds the weights themselves, so that none come back."""
    net = session.model(network())
    sgd(session, net, 0.3)
    best, best_state = 1e9, net.state_dict()
    for _ in range(EPOCHS - 1):
        epoch(session, net, rows())
        loss = loss_by_hand(net)
        if loss < best:
            best, best_state = loss, net.state_dict()
    net.load_state_dict(best_state)
    epoch(session, net, rows())


@program
def weights_read_through_a_state_dict(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    weights = net.state_dict()
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + weights["0.weight"].abs().sum().item())


@program
def best_weights_kept(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net, lr=0.3)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        if not session.best(net, accuracy(session, net)):
            optimizer.param_groups[0]["lr"] *= 0.5
    session.load_best(net)


@program
def average_by_hand(session: Session) -> None:
    """An average of the weights after each epoch, in a copy of the model that nobody registered."""
    net = session.model(network())
    sgd(session, net)
    average = copy.deepcopy(net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean.mul_(0.5).add_(weight, alpha=0.5)
    net.load_state_dict(average.state_dict())


class Ema:
    """An average that is kept, and updated with every step."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.mean = {name: value.clone() for name, value in net.state_dict().items()}

    def update(self) -> None:
        for name, value in self.net.state_dict().items():
            mean = self.mean[name]
            self.mean[name] = mean * 0.9 + value * 0.1 if mean.is_floating_point() else value.clone()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.mean)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = dict(state)


@program
def kept_average(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    ema = Ema(net)
    session.keep("ema", ema)
    session.on_commit(ema.update)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        accuracy(session, net)
    net.load_state_dict(ema.state_dict())


@program
def kept_schedule(session: Session) -> None:
    net = session.model(network())
    schedule = StepLR(sgd(session, net), 1, gamma=0.7)
    session.keep("schedule", schedule)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        schedule.step()
        accuracy(session, net)


@program
def schedule_per_step(session: Session) -> None:
    net = session.model(network())
    session.scheduler(OneCycleLR(sgd(session, net), 0.1, total_steps=STEPS))
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        print(accuracy(session, net))


@program
def two_schedules(session: Session) -> None:
    """One per step and registered, one per epoch and by hand."""
    net = session.model(network())
    optimizer = sgd(session, net)
    session.scheduler(LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step)))
    for number in range(EPOCHS):
        epoch(session, net, rows())
        optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 * number


@program
def early_stopping(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    history: list[float] = []
    for _ in range(3 * EPOCHS):
        epoch(session, net, rows())
        history.append(accuracy(session, net))
        if len(history) >= EPOCHS and max(history[-2:]) <= max(history[:-2]):
            break
    with torch.no_grad():
        net[3].bias += sum(history) / len(history)


@program
def two_models(session: Session) -> None:
    """An encoder and a head, an optimizer each, of which one slows down."""
    body, head = session.model(nn.Sequential(nn.Linear(6, 8), nn.Tanh())), session.model(nn.Linear(8, 3))
    session.optimizer(torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9))
    slow = session.optimizer(torch.optim.Adam(head.parameters(), lr=0.02))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(head(body(x)), y))
        slow.param_groups[0]["lr"] *= 0.5


@program
def freezing(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for number in range(EPOCHS):
        if number == 2:
            net[0].requires_grad_(False)
        epoch(session, net, rows())


@program
def unfreezing(session: Session) -> None:
    """Gradual unfreezing: the optimizer has all parameters, and decays and remembers only those that are trained."""
    net = session.model(network())
    net[:2].requires_grad_(False)
    session.optimizer(
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1), clip_norm=1.0
    )
    for number in range(EPOCHS):
        if number == 2:
            net[:2].requires_grad_(True)
        epoch(session, net, rows())


@program
def unfreezing_by_layers(session: Session) -> None:
    """One layer more each epoch, a score by hand or by the session in between; at last the head stays as it is."""
    net = session.model(network())
    net[:2].requires_grad_(False)
    session.optimizer(torch.optim.Adam(net.parameters(), lr=0.02))
    for number in range(EPOCHS):
        if number == 1:
            net[1].requires_grad_(True)
        if number == 2:
            net[0].requires_grad_(True)
            net[1].requires_grad_(False)
        if number == 3:
            net[1].requires_grad_(True)
            net[3].requires_grad_(False)
        accuracy(session, net)
        epoch(session, net, rows())


@program
def unfreezing_into_a_group(session: Session) -> None:
    """The body was frozen, and no optimizer had it."""
    net = session.model(network())
    body = [*net[0].parameters(), *net[1].parameters()]
    for parameter in body:
        parameter.requires_grad_(False)
    optimizer = session.optimizer(torch.optim.SGD(net[3].parameters(), lr=0.05, momentum=0.9))
    for number in range(EPOCHS):
        if number == 2:
            for parameter in body:
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": body, "lr": 0.01})
        epoch(session, net, rows())


@program
def unfreezing_with_another_optimizer(session: Session) -> None:
    """The head trains first, by SGD; then all of it, by Adam."""
    net = session.model(network())
    net[:2].requires_grad_(False)
    session.optimizer(torch.optim.SGD(net[3].parameters(), lr=0.1, momentum=0.9))
    for number in range(EPOCHS):
        if number == 2:
            net.requires_grad_(True)
            adam = session.optimizer(torch.optim.Adam(net.parameters(), lr=0.01))
            session.scheduler(StepLR(adam, 2, gamma=0.5))
        epoch(session, net, rows())


@program
def unfreezing_on_a_score(session: Session) -> None:
    """What is unfrozen, and when, follows from scores; a loop was left by `break` before."""
    net = session.model(network())
    net[:2].requires_grad_(False)
    sgd(session, net)
    for number in range(EPOCHS):
        for x, y in session.batches(rows()):
            if session.global_step >= 3 * (number + 1):
                break
            session.step(F.cross_entropy(net(x), y))
        net[1 if loss_by_hand(net) > 10 else 0].requires_grad_(number != 2)


@program
def added_group(session: Session) -> None:
    """The head trains first; the body comes in with a rate of its own."""
    net = session.model(network())
    optimizer = session.optimizer(torch.optim.SGD(net[3].parameters(), lr=0.05, momentum=0.9))
    for number in range(EPOCHS):
        if number == 2:
            optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.01})
        epoch(session, net, rows())
        for group in optimizer.param_groups:
            group["lr"] *= 0.9


@program
def reset_layer(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for number in range(EPOCHS):
        if number in (1, 2):
            net[3].reset_parameters()
        epoch(session, net, rows())


@program
def reset_statistics(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        net[1].reset_running_stats()
        epoch(session, net, rows())


@program
def reset_momentum(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        optimizer.state.clear()


@program
def curriculum(session: Session) -> None:
    """Another part of the data set every epoch, chosen by what the model did so far."""
    net = session.model(network())
    sgd(session, net)
    data, easy = rows(), 24
    for _ in range(EPOCHS):
        epoch(session, net, Subset(data, range(easy)))
        easy = min(ROWS, easy + (12 if accuracy(session, net) > 0.3 else 6))


@program
def hard_rows(session: Session) -> None:
    """The rows of the largest loss again, found by hand."""
    net = session.model(network())
    sgd(session, net)
    data = rows()
    for _ in range(2):
        epoch(session, net, data)
        with torch.no_grad():
            x, y = (tensor.to(session.device) for tensor in data.tensors)
            losses = F.cross_entropy(net.eval()(x), y, reduction="none")
        net.train()
        epoch(session, net, Subset(data, losses.topk(24).indices.tolist()))


@program
def second_phase(session: Session) -> None:
    """Warm-up of the head, then all with another optimizer; both were registered at the top."""
    net = session.model(network())
    first = session.optimizer(torch.optim.SGD(net[3].parameters(), lr=0.1))
    second = session.optimizer(torch.optim.Adam(net[0].parameters(), lr=0.0))
    for number in range(EPOCHS):
        if number == 2:
            first.param_groups[0]["lr"], second.param_groups[0]["lr"] = 0.01, 0.02
        epoch(session, net, rows())


@program
def optimizer_made_anew(session: Session) -> None:
    """Adam takes over from SGD for the same parameters, with a schedule of its own."""
    net = session.model(network())
    sgd(session, net)
    epoch(session, net, rows())
    epoch(session, net, rows())
    adam = session.optimizer(torch.optim.Adam(net.parameters(), lr=0.02))
    session.scheduler(StepLR(adam, 2, gamma=0.5))
    epoch(session, net, rows())
    epoch(session, net, rows())


UNSETTLED = {"optimizer_made_anew", *(name for name in PROGRAMS if name.startswith("unfreezing"))}
"""Programs that register objects or unfreeze parameters between loops, which is refused where items are leased."""


def norm_free() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def short_rows() -> TensorDataset:
    """The last batch has two rows: not every shard has one, and not every worker runs the body for it."""
    return rows(count=ROWS + 2)


@program
def rate_by_step(session: Session) -> None:
    """The schedule that most scripts write by hand."""
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(short_rows()):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / (1 + session.global_step)
            session.step(F.cross_entropy(net(x), y))


@program
def rate_lowered_in_a_body(session: Session) -> None:
    """A factor with each batch, whose product goes on between loops; another one at a step."""
    net = session.model(norm_free())
    optimizer = session.optimizer(torch.optim.AdamW(net.parameters(), lr=0.02))
    for _ in range(EPOCHS):
        for x, y in session.batches(short_rows()):
            optimizer.param_groups[0]["lr"] *= 0.95
            if session.global_step == 7:
                optimizer.param_groups[0]["betas"] = (0.8, 0.99)
            session.step(F.cross_entropy(net(x), y))
        print(optimizer.param_groups[0]["lr"])
        optimizer.param_groups[0]["lr"] *= 1.1


@program
def rate_tensor_filled_in_a_body(session: Session) -> None:
    net = session.model(norm_free())
    rate = torch.tensor(0.05)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9))
    for _ in range(EPOCHS):
        for x, y in session.batches(short_rows()):
            rate.fill_(0.05 / (1 + session.global_step))
            session.step(F.cross_entropy(net(x), y))


RATES = {"rate_by_step", "rate_lowered_in_a_body", "rate_tensor_filled_in_a_body"}
"""Programs whose bodies set rates, which servers that lease items refuse."""


@program
def optimizer_state_kept_and_put_back(session: Session) -> None:
    """The momentum of an epoch comes back later."""
    net = session.model(network())
    optimizer = sgd(session, net)
    kept: Any = None
    for number in range(EPOCHS):
        epoch(session, net, rows())
        if number == 1:
            kept = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(kept)
    epoch(session, net, rows())


@program
def optimizer_state_put_back_twice(session: Session) -> None:
    """The optimizer trains on in the very tensors that it was given: the second time they are what became of them."""
    net = session.model(network())
    optimizer = sgd(session, net)
    epoch(session, net, rows())
    kept = copy.deepcopy(optimizer.state_dict())
    for _ in range(EPOCHS - 1):
        optimizer.load_state_dict(kept)
        epoch(session, net, rows())


@program
def optimizer_state_held_without_a_copy(session: Session) -> None:
    """What `state_dict` gives is the optimizer's own: nothing comes back."""
    net = session.model(network())
    optimizer = sgd(session, net)
    kept: Any = None
    for number in range(EPOCHS):
        epoch(session, net, rows())
        kept = optimizer.state_dict() if number == 0 else kept
        optimizer.load_state_dict(kept)


@program
def optimizer_state_put_back_before_weights_are_read(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    kept: Any = None
    for number in range(EPOCHS):
        epoch(session, net, rows())
        if number == 0:
            kept = copy.deepcopy(optimizer.state_dict())
        elif number == 1:
            optimizer.load_state_dict(kept)
        elif loss_by_hand(net) < 0:
            break


@program
def momentum_set_by_hand(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        for parameter in net.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, 0.01)


@program
def step_of_an_optimizer_of_its_own(session: Session) -> None:
    """Between loops the program trains by itself, on rows that it has in hand."""
    net = session.model(network())
    sgd(session, net)
    own = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = (tensor.to(session.device) for tensor in rows(3, 16).tensors)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        own.zero_grad()
        F.cross_entropy(net(x), y).backward()
        own.step()


@program
def step_by_hand(session: Session) -> None:
    """The same with the registered one."""
    net = session.model(network())
    optimizer = sgd(session, net)
    x, y = (tensor.to(session.device) for tensor in rows(3, 16).tensors)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


BY_HAND = {"step_by_hand"}
"""Programs that step a registered optimizer, which servers refuse."""


@program
def activation_added(session: Session) -> None:
    """A layer without weights comes in later."""
    net = session.model(network())
    sgd(session, net)
    for number in range(EPOCHS):
        if number == 2:
            net.add_module("4", nn.Tanh())
        epoch(session, net, rows())


class Trainer:
    """A class as people write it, with its state in attributes and a method that nests functions."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.net = session.model(network())
        self.optimizer = sgd(session, self.net)
        self.best: dict[str, Any] = {"score": -1.0}

    def fit(self) -> None:
        def after() -> None:
            score = accuracy(self.session, self.net)
            if score > self.best["score"]:
                self.best = {"score": score, "net": copy.deepcopy(self.net).state_dict()}
            self.optimizer.param_groups[0]["lr"] *= 0.8 if score < 0.9 else 0.5

        for _ in range(EPOCHS):
            epoch(self.session, self.net, rows())
            after()
        self.net.load_state_dict(self.best["net"])


@program
def trainer_class(session: Session) -> None:
    Trainer(session).fit()


@program
def epochs_of_a_generator(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)

    def rates() -> Iterator[float]:
        rate = 0.08
        while True:
            yield rate
            rate *= 0.6 if loss_by_hand(net) > 0.2 else 0.3

    for _, rate in zip(range(EPOCHS), rates(), strict=False):
        optimizer.param_groups[0]["lr"] = rate
        epoch(session, net, rows())


@program
def chance_between_loops(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    own = random.Random(5)
    for _ in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.02 * (
            1 + random.random() + own.random() + float(np.random.rand())
        )
        epoch(session, net, rows(seed=int(torch.randint(0, 3, ()))))


@program
def logging_of_norms(session: Session) -> None:
    """Norms of the weights after each epoch go into the log, and the largest one into a weight decay."""
    net = session.model(network())
    optimizer = sgd(session, net)
    for number in range(EPOCHS):
        epoch(session, net, rows())
        norm = torch.linalg.vector_norm(nn.utils.parameters_to_vector(net.parameters())).item()
        print(f"epoch {number}: |w| = {norm:.6f}, loss {session.loss:.6f}")
        optimizer.param_groups[0]["weight_decay"] = norm / 1000


class Enough(Exception):
    pass


@program
def stopped_by_an_exception(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for number in range(EPOCHS):
        try:
            for x, y in session.batches(rows()):
                if session.global_step >= 6 + number:
                    raise Enough
                session.step(F.cross_entropy(net(x), y))
        except Enough:
            optimizer.param_groups[0]["lr"] *= 0.5
            net[3].reset_parameters()


@program
def left_by_break(session: Session) -> None:
    """A loop is left at a low loss; lines behind it change rate and weights before the next session call."""
    net = session.model(network())
    optimizer = sgd(session, net)
    for number in range(EPOCHS):
        for x, y in session.batches(rows()):
            if session.global_step >= 3 * (number + 1):
                break
            session.step(F.cross_entropy(net(x), y))
        optimizer.param_groups[0]["lr"] *= 0.7
        with torch.no_grad():
            net[3].bias.mul_(0.5 + random.random())


@program
def warm_restarts(session: Session) -> None:
    """Back to the best weights, and a lower rate, whenever a loss by hand has grown."""
    net = session.model(network())
    optimizer = sgd(session, net, lr=0.5)
    best, best_state = float("inf"), copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        loss = loss_by_hand(net)
        if loss < best:
            best, best_state = loss, copy.deepcopy((net.state_dict(), optimizer.state_dict()))
        else:
            net.load_state_dict(best_state[0])
            optimizer.load_state_dict(best_state[1])
            optimizer.param_groups[0]["lr"] *= 0.5


@dataclass
class Swa:
    """Stochastic weight averaging over the last epochs, as torch.optim.swa_utils has it."""

    start: int = 2


@program
def swa(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    averaged = torch.optim.swa_utils.AveragedModel(net)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=1)
    for number in range(EPOCHS):
        epoch(session, net, rows())
        if number >= Swa().start:
            averaged.update_parameters(net)
            schedule.step()
    net.load_state_dict(averaged.module.state_dict())


@program
def group_in_a_variable(session: Session) -> None:
    """A parameter group taken out once, and changed through that name."""
    net = session.model(network())
    group = sgd(session, net).param_groups[0]
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        group["lr"] *= 0.6


@program
def rate_as_a_tensor(session: Session) -> None:
    net = session.model(network())
    rate = torch.tensor(0.05)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9))
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        rate.mul_(0.6)


@program
def weights_by_assignment(session: Session) -> None:
    """`.data = …` runs no operation on the weights."""
    net = session.model(network())
    sgd(session, net)
    for number in range(EPOCHS):
        if number in (1, 2):
            net[3].weight.data = torch.zeros(3, 8, device=session.device)
        epoch(session, net, rows())


@program
def momentum_cleared_by_parameter(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        for state in optimizer.state.values():
            state.clear()


@program
def gradients_looked_at(session: Session) -> None:
    """What is left in `.grad` behind a loop, where anything is, goes into the rate."""
    net = session.model(network())
    optimizer = sgd(session, net)
    total = 0.0
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        total += sum(p.grad.norm().item() for p in net.parameters() if p.grad is not None)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + total)


class History:
    """Kept plain values: many, and no tensor among them."""

    def __init__(self) -> None:
        self.losses: list[float] = [0.0] * 20_000

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])


@program
def kept_history(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    history = History()
    session.keep("history", history)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        history.losses.append(session.loss or 0.0)
        optimizer.param_groups[0]["lr"] = 0.05 / (len(history.losses) - 20_000)


@program
def budget_of_steps(session: Session) -> None:
    """Ends within a loop, exactly where an epoch ends."""
    net = session.model(network())
    optimizer = sgd(session, net)
    done = False
    while not done:
        for x, y in session.batches(rows()):
            if session.global_step >= 8:
                done = True
                break
            session.step(F.cross_entropy(net(x), y))
        optimizer.param_groups[0]["lr"] *= 0.7


@program
def counted_operations(session: Session) -> None:
    """A mode of torch's dispatcher that the program enters around a loop."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        with FlopCounterMode(display=False) as counter:
            epoch(session, net, rows())
        print(counter.get_total_flops() >= 0, loss_by_hand(net))


class Bar:
    """A progress bar: holds what it is given as long as it lives."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.shown = batches, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            yield batch
            self.shown += 1


@program
def progress_bar_left_by_break(session: Session) -> None:
    net = session.model(network())
    optimizer = sgd(session, net)
    for number in range(EPOCHS):
        bar = Bar(session.batches(rows()))
        for x, y in bar:
            if session.global_step >= 3 * (number + 1):
                break
            session.step(F.cross_entropy(net(x), y))
        optimizer.param_groups[0]["lr"] *= 1 - loss_by_hand(net) / 10
        print(bar.batches, accuracy(session, net))


@program
def double_precision(session: Session) -> None:
    """The program says in which precision its tensors are made."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        net = session.model(network())
        optimizer = sgd(session, net)
        data = TensorDataset(rows().tensors[0].double(), rows().tensors[1])
        test = TensorDataset(rows(1, 20).tensors[0].double(), rows(1, 20).tensors[1])
        for _ in range(EPOCHS):
            epoch(session, net, data)
            hit = session.evaluate(test, lambda batch: {"hit": net(batch[0]).argmax(1) == batch[1]})["hit"]
            optimizer.param_groups[0]["lr"] *= 0.9 + hit / 100
    finally:
        torch.set_default_dtype(before)
