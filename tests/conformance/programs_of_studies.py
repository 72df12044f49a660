"""Training functions of studies: pruning, augmentation by epoch, continual learning, replay, evolution.

What they hold between loops lies in hooks, data sets, queues and modules of torch that no session knows of.
"""

import contextlib
import io
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from programs import EPOCHS, ROWS, Enough, Program, accuracy, epoch, network, norm_free, rows, sgd
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters
from torch.utils.data import DataLoader, Subset, TensorDataset

from ringleader.train import Session

OF_STUDIES: dict[str, Program] = {}
CHANGED_AT_THE_END = (
    "mask_made_permanent_at_the_end",
    "norm_of_weights_removed_at_the_end",
    "head_replaced_at_the_end",
    "norm_fused_at_the_end",
)
"""Behind the last loop they give the models another structure."""


def program(function: Program) -> Program:
    OF_STUDIES[function.__name__] = function
    return function


@program
def pruned_more_each_epoch(session: Session) -> None:
    """The smallest weights of all layers are masked, more of them each epoch."""
    net = norm_free()
    layers = [(layer, "weight") for layer in (net[0], net[2])]
    for layer in layers:
        prune.identity(*layer)
    session.model(net)
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=0.1)


class Mixed(TensorDataset):
    """Rows mixed with others, with a share and partners that are drawn once an epoch."""

    def __init__(self) -> None:
        super().__init__(*rows().tensors)
        self.draws, self.share, self.partners = np.random.default_rng(7), 1.0, np.arange(ROWS)

    def draw(self) -> None:
        self.share, self.partners = self.draws.beta(0.4, 0.4), self.draws.permutation(ROWS)

    def __getitem__(self, row: int) -> Any:
        (x, y), (other, label) = super().__getitem__(row), super().__getitem__(int(self.partners[row]))
        return self.share * x + (1 - self.share) * other, y, label


@program
def mixed_by_a_generator_of_the_data_set(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    data = Mixed()
    for _ in range(EPOCHS):
        for x, y, other in session.batches(data):
            out = net(x)
            session.step(
                data.share * F.cross_entropy(out, y) + (1 - data.share) * F.cross_entropy(out, other)
            )
        data.draw()


@program
def elastic_weights(session: Session) -> None:
    """Fisher information of each task, by gradients that the program computes itself, holds back the next ones."""
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    tasks: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    for number in range(EPOCHS):
        for x, y in session.batches(rows(number)):
            loss = F.cross_entropy(net(x), y)
            for fisher, anchor in tasks:
                for name, p in net.named_parameters():
                    loss = loss + 0.5 * (fisher[name] * (p - anchor[name]) ** 2).sum()
            session.step(loss)
        fisher = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        for x, y in DataLoader(rows(number), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x.to(session.device)), y.to(session.device)).backward()
            for name, p in net.named_parameters():
                fisher[name] += p.grad.data.clone().pow(2) / 3  # type: ignore[union-attr]
        tasks.append((fisher, {name: p.data.clone() for name, p in net.named_parameters()}))


@program
def replay_memory(session: Session) -> None:
    """An agent plays between loops, and learns from draws of what it remembers; its target follows every other one."""
    net = session.model(norm_free())
    session.optimizer(torch.optim.Adam(net.parameters(), lr=0.01))
    target = norm_free().to(session.device)
    target.load_state_dict(net.state_dict())
    memory: deque[tuple[Tensor, int, float, Tensor]] = deque(maxlen=64)
    for number in range(EPOCHS):
        state = torch.from_numpy(np.random.randn(6)).float()
        for _ in range(40):
            with torch.no_grad():
                best = int(net(state.to(session.device)).argmax())
            action = random.randrange(3) if random.random() < 0.7**number else best
            following = 0.9 * state.roll(action) + 0.1 * torch.randn(6)
            memory.append((state, action, float(following[0] > 0), following))
            state = following
        states, actions, rewards, later = zip(*random.sample(memory, 36), strict=True)
        lived = TensorDataset(
            torch.stack(states), torch.tensor(actions), torch.tensor(rewards), torch.stack(later)
        )
        for state, action, reward, following in session.batches(lived):
            value = net(state).gather(1, action[:, None])[:, 0]
            session.step(F.smooth_l1_loss(value, reward + 0.9 * target(following).amax(1).detach()))
        if number % 2:
            target.load_state_dict(net.state_dict())


@program
def evolution_between_loops(session: Session) -> None:
    """Candidates around the weights, all of which become views of one vector, are scored; the best one goes on."""
    net = session.model(norm_free())
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        center = parameters_to_vector(net.parameters()).detach()
        candidates = [center, *(center + 0.1 * torch.randn_like(center) for _ in range(2))]
        scores = []
        for candidate in candidates:
            vector_to_parameters(candidate, net.parameters())
            scores.append(accuracy(session, net))
        vector_to_parameters(candidates[int(np.argmax(scores))], net.parameters())


@program
def left_within_an_exit_stack(session: Session) -> None:
    """An exception ends a loop within contexts that suppress it, put streams back, and set a rate as they close."""
    net = session.model(network())
    optimizer = sgd(session, net)
    ends: list[int] = []
    for number in range(EPOCHS):
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(Enough))
            stack.enter_context(torch.random.fork_rng())
            stack.callback(lambda: optimizer.param_groups[0].update(lr=0.05 / (len(ends) + random.random())))
            stack.callback(ends.append, number)
            torch.manual_seed(number)
            for x, y in session.batches(Subset(rows(), torch.randperm(ROWS).tolist())):
                if session.global_step >= 3 * (number + 1):
                    raise Enough
                session.step(F.cross_entropy(net(x), y))
        with torch.no_grad():
            net[3].bias.add_(0.01 * torch.randn(3).to(session.device))


@program
def mask_made_permanent_at_the_end(session: Session) -> None:
    net = norm_free()
    prune.l1_unstructured(net[0], "weight", 0.5)
    session.model(net)
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
    prune.remove(net[0], "weight")
    with torch.no_grad():
        net[2].weight.mul_(0.5)


@program
def norm_of_weights_removed_at_the_end(session: Session) -> None:
    net = norm_free()
    torch.nn.utils.parametrizations.weight_norm(net[2])
    session.model(net)
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
    torch.nn.utils.parametrize.remove_parametrizations(net[2], "weight")


@program
def head_replaced_at_the_end(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
    net[2] = torch.nn.Linear(8, 5)
    print(sum(weight.norm() for weight in net.parameters()))


@program
def norm_fused_at_the_end(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
    net.eval()
    net[0] = torch.nn.utils.fusion.fuse_linear_bn_eval(net[0], net[1])
    net[1] = torch.nn.Identity()
    net.half()


@program
def saved_by_the_main_worker_alone(session: Session) -> None:
    """The others do not touch the weights there, as where it writes a file."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        if session.is_main:
            torch.save(net.state_dict(), io.BytesIO())
