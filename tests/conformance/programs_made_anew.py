"""Training functions that register optimizers in place of others between loops, some from papers' code, a cyclic rate.

Beside `programs.py`, whose own table of programs is in checkpoints that version 0.1 wrote, as a variable of theirs.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from programs import EPOCHS, PROGRAMS, Program, accuracy, epoch, loss_by_hand, network, rows, sgd
from programs_by_phases import BY_PHASES
from programs_by_steps import BY_STEPS
from programs_of_strangers import OF_STRANGERS
from programs_of_studies import OF_STUDIES
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CyclicLR, StepLR

from ringleader.train import Session

MADE_ANEW: dict[str, Program] = {}


def program(function: Program) -> Program:
    MADE_ANEW[function.__name__] = function
    return function


@program
def optimizer_made_anew_beside_a_loss_by_hand(session: Session) -> None:
    """Weights are read at each boundary, and another optimizer of the same kind takes over in the middle."""
    net = session.model(network())
    sgd(session, net)
    for number in range(EPOCHS):
        if number == 2:
            sgd(session, net, lr=0.02)
        epoch(session, net, rows())
        print(loss_by_hand(net))


@program
def one_optimizer_in_place_of_two(session: Session) -> None:
    """The head is trained faster at first; then one optimizer, with a schedule of its own, has all parameters."""
    net = session.model(network())
    session.optimizer(torch.optim.SGD(net[3].parameters(), lr=0.1, momentum=0.9))
    session.optimizer(torch.optim.SGD(net[:3].parameters(), lr=0.02, momentum=0.5))
    epoch(session, net, rows())
    schedule = None
    for number in range(1, EPOCHS):
        if number == 2:
            schedule = StepLR(sgd(session, net), 1, gamma=0.5)
        epoch(session, net, rows())
        if schedule is not None:
            schedule.step()
        print(loss_by_hand(net))


@program
def schedules_of_optimizers_made_anew(session: Session) -> None:
    """Each of two phases registers an optimizer and its schedule; the first schedule ends with its optimizer."""
    net = session.model(network())
    for number in range(EPOCHS):
        if number in (0, 2):
            adam = session.optimizer(torch.optim.Adam(net.parameters(), lr=0.02 / (number + 1)))
            session.scheduler(StepLR(adam, 2, gamma=0.8))
        epoch(session, net, rows())
        print(loss_by_hand(net))


@program
def optimizer_made_anew_in_another_order(session: Session) -> None:
    """Another optimizer of the same kind has the same parameters, two of one shape in each other's place."""
    hidden = [nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6, bias=False), nn.Tanh()]
    net = session.model(nn.Sequential(*hidden, nn.Linear(6, 3)))
    sgd(session, net)
    for number in range(EPOCHS):
        if number == 2:
            first, second, *rest = net.parameters()
            session.optimizer(torch.optim.SGD([second, first, *rest], lr=0.02, momentum=0.9))
        epoch(session, net, rows())


@program
def features_of_a_hook(session: Session) -> None:
    """A forward hook leaves features in a dict, from which the loss takes them."""
    net = session.model(network())
    sgd(session, net)
    features: dict[str, Tensor] = {}
    net[2].register_forward_hook(lambda _module, _given, out: features.update(hidden=out))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            out = net(x)
            session.step(F.cross_entropy(out, y) + 0.01 * features["hidden"].pow(2).mean())


@program
def taught_by_the_epoch_before(session: Session) -> None:
    """Each epoch learns from a frozen copy of what the one before it has made."""
    net = session.model(network())
    sgd(session, net)
    teacher = None
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            out = net(x)
            loss = F.cross_entropy(out, y)
            if teacher is not None:
                loss = loss + F.kl_div(out.log_softmax(1), teacher(x).softmax(1), reduction="batchmean")
            session.step(loss)
        teacher = copy.deepcopy(net).eval().requires_grad_(False)


@program
def averages_swapped_in_by_data(session: Session) -> None:
    """Averages take the weights' place for a score, by `.data`, and at the end."""
    net = session.model(network())
    optimizer = sgd(session, net)
    averages = {name: p.data.clone() for name, p in net.named_parameters()}
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        kept = {}
        for name, p in net.named_parameters():
            averages[name] = 0.5 * averages[name] + 0.5 * p.data
            kept[name], p.data = p.data, averages[name]
        score = accuracy(session, net)
        for name, p in net.named_parameters():
            p.data = kept[name]
        optimizer.param_groups[0]["lr"] = 0.05 * (1.2 - score)
    for name, p in net.named_parameters():
        p.data = averages[name]


@program
def cyclic_schedule(session: Session) -> None:
    """The rate rises and falls, and the momentum against it."""
    net = session.model(network())
    session.scheduler(CyclicLR(sgd(session, net), 0.01, 0.1, step_size_up=3))
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        accuracy(session, net)


class StepOutputs(nn.Module):
    """Keeps the losses of an epoch's turns until its end takes their mean, as a module of Lightning does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.training_step_outputs: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.training_step_outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        print("train loss", torch.stack(self.training_step_outputs).mean().item())
        self.training_step_outputs.clear()


@program
def step_outputs_stacked(session: Session) -> None:
    """A method of the module collects losses, and another one shows their mean."""
    module = session.model(StepOutputs())
    sgd(session, module)
    for _ in range(EPOCHS):
        for batch in session.batches(rows()):
            session.step(module.training_step(batch))
        module.on_train_epoch_end()


def averaged(batches: Iterable[Any]) -> Iterator[Any]:
    """Shows the mean size of the batches that it gives."""
    sizes: dict[str, int] = {"rows": 0, "batches": 0}
    for batch in batches:
        yield batch
        sizes["rows"] += len(batch[0])
        sizes["batches"] += 1
    print(f"{sizes['rows'] / sizes['batches']:.1f} rows in a batch")


@program
def averages_of_a_generator(session: Session) -> None:
    """A generator around the batches shows a mean; the loop's names are deleted behind it."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in averaged(session.batches(rows())):
            session.step(F.cross_entropy(net(x), y))
        del x, y


ALL = PROGRAMS | MADE_ANEW | BY_STEPS | BY_PHASES | OF_STUDIES | OF_STRANGERS
