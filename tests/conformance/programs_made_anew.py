"""Training functions that register optimisers in place of others, between loops.

Beside `programs.py`, whose own table of programs is in checkpoints that version 0.1 wrote, as a variable of theirs.
"""

import torch
from programs import EPOCHS, PROGRAMS, Program, epoch, loss_by_hand, network, rows, sgd
from programs_by_steps import BY_STEPS
from torch import nn
from torch.optim.lr_scheduler import StepLR

from ringleader.train import Session

MADE_ANEW: dict[str, Program] = {}


def program(function: Program) -> Program:
    MADE_ANEW[function.__name__] = function
    return function


@program
def optimizer_made_anew_beside_a_loss_by_hand(session: Session) -> None:
    """Weights are read at each boundary, and another optimiser of the same kind takes over in the middle."""
    net = session.model(network())
    sgd(session, net)
    for number in range(EPOCHS):
        if number == 2:
            sgd(session, net, lr=0.02)
        epoch(session, net, rows())
        print(loss_by_hand(net))


@program
def one_optimizer_in_place_of_two(session: Session) -> None:
    """The head is trained faster at first; then one optimiser, with a schedule of its own, has all parameters."""
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
    """Each of two phases registers an optimiser and its schedule; the first schedule ends with its optimiser."""
    net = session.model(network())
    for number in range(EPOCHS):
        if number in (0, 2):
            adam = session.optimizer(torch.optim.Adam(net.parameters(), lr=0.02 / (number + 1)))
            session.scheduler(StepLR(adam, 2, gamma=0.8))
        epoch(session, net, rows())
        print(loss_by_hand(net))


@program
def optimizer_made_anew_in_another_order(session: Session) -> None:
    """Another optimiser of the same kind has the same parameters, two of one shape in each other's place."""
    hidden = [nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6, bias=False), nn.Tanh()]
    net = session.model(nn.Sequential(*hidden, nn.Linear(6, 3)))
    sgd(session, net)
    for number in range(EPOCHS):
        if number == 2:
            first, second, *rest = net.parameters()
            session.optimizer(torch.optim.SGD([second, first, *rest], lr=0.02, momentum=0.9))
        epoch(session, net, rows())


ALL = PROGRAMS | MADE_ANEW | BY_STEPS
