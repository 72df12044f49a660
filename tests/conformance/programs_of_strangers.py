"""Training functions with the structure of well-known repositories, ported by the lines of `docs/port-your-script.md`.

Classes with loops of their own, settings by arrays, rows that are made anew between loops, optimizers that take over.
"""

import copy
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from programs import EPOCHS, ROWS, STEPS, Program, accuracy, network, norm_free, rows, sgd
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ringleader.train import Session

OF_STRANGERS: dict[str, Program] = {}
STEPS_OF_AN_EPOCH = STEPS // EPOCHS


def program(function: Program) -> Program:
    OF_STRANGERS[function.__name__] = function
    return function


class Meter:
    """A mean of what turns show, for people alone."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sum = self.count = self.avg = 0.0

    def update(self, value: float, n: int = 1) -> None:
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count


class MetricLogger:
    """Meters by name, and a generator around the batches that shows them every few turns."""

    def __init__(self) -> None:
        self.meters: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=20))

    def update(self, **values: float) -> None:
        for name, value in values.items():
            self.meters[name].append(value)

    def __getattr__(self, name: str) -> deque[float]:
        if name in vars(self).get("meters", {}):
            return self.meters[name]
        raise AttributeError(name)

    def log_every(self, batches: Iterable[Any], often: int) -> Iterator[Any]:
        for turn, batch in enumerate(batches):
            yield batch
            if turn % often == 0:
                print(turn, {name: float(np.mean(values)) for name, values in self.meters.items()})


class Views(Dataset[tuple[list[Tensor], int]]):
    """Two large views of a row and two small ones, of another shape."""

    def __init__(self) -> None:
        self.points = rows().tensors[0]

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, row: int) -> tuple[list[Tensor], int]:
        point = self.points[row]
        large = [point + 0.1 * torch.randn(6) for _ in range(2)]
        return [*large, *(point[:4] * random.choice((-1, 1)) for _ in range(2))], 0


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(6, 8), nn.Linear(4, 8)
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 5, bias=False))

    def forward(self, views: list[Tensor]) -> Tensor:
        codes = [(self.large if view.shape[1] == 6 else self.small)(view) for view in views]
        out: Tensor = self.last(F.normalize(F.gelu(torch.cat(codes)), dim=1))
        return out


class Centered(nn.Module):
    """A loss with a running centre, and a temperature for each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 5))
        self.temperatures = np.concatenate((np.linspace(0.04, 0.07, 2), np.full(EPOCHS - 2, 0.07)))

    def forward(self, student: Tensor, teacher: Tensor, number: int) -> Tensor:
        asked = F.softmax((teacher - self.center) / self.temperatures[number], dim=1).detach().chunk(2)
        views = (student / 0.1).chunk(4)
        pairs = [(a, b) for a in range(2) for b in range(4) if a != b]
        losses = [-(asked[a] * F.log_softmax(views[b], dim=1)).sum(1).mean() for a, b in pairs]
        with torch.no_grad():
            self.center = self.center * 0.9 + teacher.mean(0, keepdim=True) * 0.1
        return torch.stack(losses).mean()


@program
def student_of_a_momentum_teacher(session: Session) -> None:
    """Self-distillation: rates, decays and momenta by arrays with a number a step, the last layer frozen first."""
    student, teacher = session.model(Encoder()), Encoder().to(session.device)
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    loss_of = session.model(Centered())
    decayed = [p for p in student.parameters() if p.ndim > 1]
    others = [p for p in student.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = session.optimizer(torch.optim.AdamW(groups), clip_norm=3.0)
    part = np.arange(STEPS) / STEPS
    rates = np.concatenate((np.linspace(0, 0.01, 4), 0.01 * np.cos(part[4:])))
    decays, momenta = 0.4 - 0.36 * np.cos(part), 1 - 0.1 * np.cos(part)

    def follow() -> None:
        momentum = momenta[session.global_step - 1]
        with torch.no_grad():
            for theirs, ours in zip(student.parameters(), teacher.parameters(), strict=True):
                ours.data.mul_(momentum).add_((1 - momentum) * theirs.detach().data)

    session.keep("teacher", teacher)
    session.on_commit(follow)
    for number in range(EPOCHS):
        student.last.requires_grad_(number >= 1)
        shown = MetricLogger()
        for views, _ in shown.log_every(session.batches(Views()), 2):
            for place, group in enumerate(optimizer.param_groups):
                group["lr"] = rates[session.global_step]
                if place == 0:
                    group["weight_decay"] = decays[session.global_step]
            loss = loss_of(student(views), teacher(views[:2]), number)
            session.step(loss)
            shown.update(loss=loss.item())


class Unpaired(Dataset[dict[str, Tensor]]):
    """A row of one domain, and one of the other that is drawn."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"a": rows().tensors[0][row], "b": rows(1).tensors[0][random.randrange(ROWS)]}


class Decay:
    def __init__(self, start: int) -> None:
        self.start = start

    def step(self, number: int) -> float:
        return 1.0 - max(0, number - self.start) / (EPOCHS - self.start)


@program
def two_domains_by_turns(session: Session) -> None:
    """Two generators with one optimizer, two critics with one each, each with a schedule by a bound method."""
    there, back = (session.model(nn.Linear(6, 6)) for _ in range(2))
    critics = [
        session.model(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)))
        for _ in range(2)
    ]
    makers = session.optimizer(torch.optim.Adam([*there.parameters(), *back.parameters()], lr=0.01))
    judges = [session.optimizer(torch.optim.Adam(critic.parameters(), lr=0.01)) for critic in critics]
    schedules = [LambdaLR(optimizer, Decay(1).step) for optimizer in (makers, *judges)]
    for _ in range(EPOCHS):
        for by_makers, by_first, by_second in session.steps(Unpaired(), phases=[makers, *judges]):
            for batch in by_makers:
                b, a = there(batch["a"]), back(batch["b"])
                cycle = F.l1_loss(back(b), batch["a"]) + F.l1_loss(there(a), batch["b"])
                session.step(
                    (critics[0](a) - 1).pow(2).mean() + (critics[1](b) - 1).pow(2).mean() + 5 * cycle
                )
            for batch in by_first:
                fake = back(batch["b"]).detach()
                session.step((critics[0](batch["a"]) - 1).pow(2).mean() + critics[0](fake).pow(2).mean())
            for batch in by_second:
                fake = there(batch["a"]).detach()
                session.step((critics[1](batch["b"]) - 1).pow(2).mean() + critics[1](fake).pow(2).mean())
        for schedule in schedules:
            schedule.step()


class Greedy(nn.Linear):
    """A layer that learns by itself to tell rows from others."""

    def fit(self, session: Session, good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(EPOCHS // 2):
            for x, other in session.batches(TensorDataset(good, bad)):
                strong, weak = self(x).pow(2).mean(1), self(other).pow(2).mean(1)
                session.step(F.softplus(torch.cat([1 - strong, weak - 1])).mean())
        return self(good).detach(), self(bad).detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x / (x.norm(dim=1, keepdim=True) + 1e-4)))


@program
def layer_by_layer(session: Session) -> None:
    """Each layer has an optimizer of its own, and what it makes of all rows is the data set of the next."""
    layers = [session.model(Greedy(6, 8)), session.model(Greedy(8, 8))]
    for layer in layers:
        session.optimizer(torch.optim.Adam(layer.parameters(), lr=0.03))
    good = rows().tensors[0]
    bad = good[torch.randperm(ROWS)]
    for layer in layers:
        good, bad = layer.fit(session, good, bad)


class Tasks(Dataset[tuple[Tensor, Tensor, Tensor, Tensor]]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = torch.randn(8, 6)
        y = (x[:, row % 6] > 0).long()
        return x[:4], y[:4], x[4:], y[4:]


@program
def learning_to_learn(session: Session) -> None:
    """The loss is behind a step of each task's own; between loops copies of the model are tuned."""
    net = session.model(norm_free())
    session.optimizer(torch.optim.Adam(net.parameters(), lr=0.02))

    def tuned(of: nn.Module, x: Tensor, y: Tensor, *, create_graph: bool) -> dict[str, Tensor]:
        weights = dict(of.named_parameters())
        loss = F.cross_entropy(of(x), y)
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
        return {name: p - 0.1 * slope for (name, p), slope in zip(weights.items(), slopes, strict=True)}

    for _ in range(EPOCHS):
        for known, labels, asked, answers in session.batches(Tasks()):
            losses = []
            for x, y, x_asked, y_asked in zip(known, labels, asked, answers, strict=True):
                fast = tuned(net, x, y, create_graph=True)
                losses.append(F.cross_entropy(torch.func.functional_call(net, fast, (x_asked,)), y_asked))
            session.step(torch.stack(losses).mean())
        scores = []
        for x, y, x_asked, y_asked in (Tasks()[row] for row in range(4)):
            tester = copy.deepcopy(net)
            fast = tuned(tester, x, y, create_graph=False)
            with torch.no_grad():
                out = torch.func.functional_call(tester, fast, (x_asked,))
            scores.append((out.argmax(1) == y_asked).float().mean().item())
        print(np.mean(scores))


class Poles:
    """Several poles that an agent balances, which fall from where they stood when the last loop began."""

    def __init__(self, count: int) -> None:
        self.draws = np.random.default_rng(1)
        self.count = count
        self.state = self.draws.uniform(-0.05, 0.05, (count, 6))

    def step(self, action: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        push = np.where(action == 1, 0.1, -0.1)[:, None]
        self.state = 1.1 * self.state + push + self.draws.normal(0, 0.02, self.state.shape)
        fallen = np.abs(self.state[:, 0]) > 0.5
        self.state[fallen] = self.draws.uniform(-0.05, 0.05, (int(fallen.sum()), 6))
        return torch.tensor(self.state, dtype=torch.float32), torch.tensor(~fallen, dtype=torch.float32)


@program
def rollouts_of_environments(session: Session) -> None:
    """Proximal policy optimization: the agent plays between loops, into tensors that are written in place."""
    agent, poles, turns = session.model(network()), Poles(4), ROWS // 4
    optimizer = session.optimizer(torch.optim.Adam(agent.parameters(), lr=0.02, eps=1e-5), clip_norm=0.5)
    states, actions = torch.zeros(turns, 4, 6), torch.zeros(turns, 4, dtype=torch.long)
    chances, rewards, values = (torch.zeros(turns, 4) for _ in range(3))
    state = torch.tensor(poles.state, dtype=torch.float32)

    def played(x: Tensor) -> tuple[Categorical, Tensor]:
        out = agent(x.to(session.device))
        return Categorical(logits=out[:, :2]), out[:, 2]

    for number in range(EPOCHS // 2):
        optimizer.param_groups[0]["lr"] = (1 - number / EPOCHS) * 0.02
        agent.eval()
        for turn in range(turns):
            states[turn] = state
            with torch.no_grad():
                policy, values[turn] = played(state)
                actions[turn] = policy.sample()
                chances[turn] = policy.log_prob(actions[turn].to(session.device))
            state, rewards[turn] = poles.step(actions[turn].numpy())
        returns, following = torch.zeros_like(rewards), torch.zeros(4)
        for turn in reversed(range(turns)):
            returns[turn] = following = rewards[turn] + 0.9 * following
        agent.train()
        lived = TensorDataset(
            *(t.flatten(0, 1) for t in (states, actions, chances, returns, returns - values))
        )
        clipped: list[float] = []
        for _ in range(2):
            for x, action, chance, gained, advantage in session.batches(lived):
                policy, value = played(x)
                ratio = (policy.log_prob(action) - chance).exp()
                clipped.append((ratio - 1).abs().mean().item())
                loss = -torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2)).mean()
                session.step(loss + F.mse_loss(value, gained) - 0.01 * policy.entropy().mean())
        print(np.mean(clipped) if clipped else 0, loss.item(), 1 - returns.var() / values.var())


class Callback:
    order = 0


class Training(Callback):
    def predict(self, learner: "Learner") -> None:
        learner.predictions = learner.model(learner.batch[0])

    def get_loss(self, learner: "Learner") -> None:
        learner.loss = F.cross_entropy(learner.predictions, learner.batch[1])

    def step(self, learner: "Learner") -> None:
        learner.session.step(learner.loss)


class Metrics(Callback):
    def before_epoch(self, learner: "Learner") -> None:
        self.meter = Meter()

    def after_batch(self, learner: "Learner") -> None:
        self.meter.update(learner.loss.item(), len(learner.batch[0]))

    def after_epoch(self, learner: "Learner") -> None:
        print(learner.number, learner.training, self.meter.avg)


class Scheduled(Callback):
    order = 1

    def before_fit(self, learner: "Learner") -> None:
        self.schedule = OneCycleLR(learner.optimizer, 0.1, total_steps=EPOCHS)

    def after_epoch(self, learner: "Learner") -> None:
        if learner.training and learner.number < EPOCHS - 1:
            self.schedule.step()


class CancelFit(Exception):
    pass


class CancelEpoch(Exception):
    pass


class Stopping(Callback):
    order = 2

    def before_valid(self, learner: "Learner") -> None:
        learner.scores.append(accuracy(learner.session, learner.model))
        raise CancelEpoch

    def after_epoch(self, learner: "Learner") -> None:
        if not learner.training and len(learner.scores) == EPOCHS:
            raise CancelFit


class Learner:
    """A loop all of whose lines are callbacks; its variables are attributes, and exceptions end its parts."""

    predictions: Tensor
    loss: Tensor
    batch: Any

    def __init__(self, session: Session, callbacks: list[Callback]) -> None:
        self.session, self.callbacks = session, callbacks
        self.model = session.model(network())
        self.scores: list[float] = []

    def call(self, name: str) -> None:
        for callback in sorted(self.callbacks, key=lambda each: each.order):
            method = getattr(callback, name, None)
            if method is not None:
                method(self)

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name in ("predict", "get_loss", "step"):
            return lambda: self.call(name)
        raise AttributeError(name)

    def one_epoch(self, training: bool) -> None:
        self.training = training
        self.model.train(training)
        try:
            self.call("before_epoch")
            if not training:
                self.call("before_valid")
            for self.batch in self.session.batches(rows()):  # noqa: B020
                self.predict()
                self.get_loss()
                self.step()
                self.call("after_batch")
            self.call("after_epoch")
        except CancelEpoch:
            self.call("after_epoch")

    def fit(self) -> None:
        self.optimizer = sgd(self.session, self.model)
        try:
            self.call("before_fit")
            for self.number in range(2 * EPOCHS):
                self.one_epoch(training=True)
                self.one_epoch(training=False)
        except CancelFit:
            print(self.scores)


@program
def learner_of_callbacks(session: Session) -> None:
    learner = Learner(session, [Stopping(), Scheduled(), Metrics(), Training()])
    learner.fit()
    with torch.no_grad():
        learner.model[3].bias += sum(learner.scores)


class Interactions(Dataset[tuple[int, int, int]]):
    """Pairs that were seen, and others that are drawn anew before each loop."""

    def __init__(self) -> None:
        draws = random.Random(1)
        self.seen = [(draws.randrange(8), draws.randrange(9)) for _ in range(ROWS // 3)]
        self.pairs: list[tuple[int, int, int]] = []

    def draw(self) -> None:
        self.pairs = [(user, item, 1) for user, item in self.seen]
        for user, _ in self.seen:
            for _ in range(2):
                item = np.random.randint(9)
                while (user, item) in self.seen:
                    item = np.random.randint(9)
                self.pairs.append((user, item, 0))

    def __len__(self) -> int:
        return 3 * len(self.seen)

    def __getitem__(self, row: int) -> tuple[int, int, int]:
        return self.pairs[row]


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.out = nn.Embedding(8, 4), nn.Embedding(9, 4), nn.Linear(4, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        out: Tensor = self.out(F.dropout(self.users(users) * self.items(items), 0.1, self.training))[:, 0]
        return out


@program
def negatives_drawn_by_the_data_set(session: Session) -> None:
    """A recommender: hits are counted by hand, user by user, and the best count sets the rate."""
    net, data = session.model(Factors()), Interactions()
    optimizer = session.optimizer(torch.optim.Adam(net.parameters(), lr=0.02))
    best = -1.0
    for _ in range(EPOCHS):
        net.train()
        data.draw()
        for users, items, labels in session.batches(data):
            session.step(F.binary_cross_entropy_with_logits(net(users, items), labels.float()))
        net.eval()
        hits = []
        for user, item in data.seen[:6]:
            with torch.no_grad():
                scores = net(torch.full((9,), user).to(session.device), torch.arange(9).to(session.device))
            hits.append(int(item in scores.topk(3).indices.tolist()))
        if np.mean(hits) > best:
            best = float(np.mean(hits))
        optimizer.param_groups[0]["lr"] = 0.02 * (1.5 - best)


class Pictured(Dataset[tuple[Tensor, Tensor]]):
    """Rows by indices that the program sets, some of them mixed with others until it says no more."""

    def __init__(self) -> None:
        self.points, self.labels = rows().tensors
        self.indices, self.mixes = list(range(ROWS)), True

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        at = self.indices[row]
        point = self.points[at]
        if self.mixes and random.random() < 0.5:
            point = (point + self.points[random.choice(self.indices)]) / 2
        return point, self.labels[at]


class Ramped:
    """An average of all weights and buffers whose decay grows with its updates. Implements Stateful."""

    def __init__(self, net: nn.Module) -> None:
        self.mean, self.updates = copy.deepcopy(net).eval().requires_grad_(False), 0
        self.decay = lambda updates: 0.9 * (1 - math.exp(-updates / 4))

    def update(self, net: nn.Module) -> None:
        self.updates += 1
        decay, newest = self.decay(self.updates), net.state_dict()
        for name, value in self.mean.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(decay).add_((1 - decay) * newest[name].detach())

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "mean": self.mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self.mean.load_state_dict(state["mean"])


@program
def rows_by_weights_of_classes(session: Session) -> None:
    """A detector's loop: groups by kind of parameter, warm-up of rates and momenta by interpolation, rows drawn by
    scores of their classes, augmentation that ends late, the average scored and exported."""
    net, data = session.model(network()), Pictured()
    norms, biases = (nn.BatchNorm1d,), [p for name, p in net.named_parameters() if name.endswith("bias")]
    scales = [m.weight for m in net.modules() if isinstance(m, norms)]
    matrices = [p for p in net.parameters() if p.ndim > 1]
    optimizer = session.optimizer(torch.optim.SGD(biases, lr=0.05, momentum=0.9, nesterov=True))
    optimizer.add_param_group({"params": matrices, "weight_decay": 0.01})
    optimizer.add_param_group({"params": scales, "weight_decay": 0.0})
    slope = lambda number: (1 - number / EPOCHS) * 0.99 + 0.01  # noqa: E731
    schedule = LambdaLR(optimizer, slope)
    average = Ramped(net)
    session.keep("average", average)
    session.on_commit(lambda: average.update(net))
    missed = np.ones(3)
    for number in range(EPOCHS):
        weights = [float(missed[label]) ** 2 for label in data.labels]
        data.indices = random.choices(range(ROWS), weights=weights, k=ROWS)
        data.mixes = number < EPOCHS - 1
        for x, y in session.batches(data):
            at = session.global_step
            if at <= 6:
                for place, group in enumerate(optimizer.param_groups):
                    first = 0.1 if place == 0 else 0.0
                    group["lr"] = np.interp(at, [0, 6], [first, group["initial_lr"] * slope(number)])
                    group["momentum"] = np.interp(at, [0, 6], [0.8, 0.9])
            session.step(F.cross_entropy(net(x), y))
        schedule.step()
        hit = session.evaluate(
            rows(1, 20), lambda batch: {"hit": (average.mean(batch[0]).argmax(1) == batch[1]).float()}
        )["hit"]
        missed = np.array([1.1 - hit, 1.0, 1.0 - hit / 2])
    net.load_state_dict(average.mean.state_dict())


class Batch:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.tokens = x, y, (y > 0).sum() + 1


class SmoothedLoss:
    """A head and smoothed targets, of which the last ones can be looked at."""

    def __init__(self, head: nn.Module) -> None:
        self.head, self.asked = head, torch.zeros(0)

    def __call__(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        self.asked = torch.full((len(batch.y), 3), 0.1).to(batch.y.device)
        self.asked.scatter_(1, batch.y[:, None], 0.8)
        loss = F.kl_div(F.log_softmax(self.head(features), 1), self.asked, reduction="sum") / batch.tokens
        return loss.data * batch.tokens, loss


def run_epoch(
    session: Session | None, batches: Iterator[Batch], net: nn.Module, loss_of: SmoothedLoss
) -> float:
    """The same loop for training and for validation, where there is no session."""
    total, counted, shown = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for number, batch in enumerate(batches):
        told, loss = loss_of(net(batch.x), batch)
        if session is not None:
            session.step(loss, weight=batch.tokens.item())
        total, counted, shown = total + told.cpu(), counted + batch.tokens.cpu(), shown + batch.tokens.cpu()
        if number % 4 == 1:
            print(number, (told.cpu() / shown).item())
            shown = torch.zeros(())
        del loss, told
    return (total / counted).item()


@program
def one_function_for_both_loops(session: Session) -> None:
    """A function over an iterator of batches, a generator expression, trains and validates; it divides by counts."""
    body, head = (
        session.model(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Tanh())),
        session.model(nn.Linear(8, 3)),
    )
    optimizer = session.optimizer(torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.02))
    schedule = CosineAnnealingLR(optimizer, EPOCHS)
    loss_of = SmoothedLoss(head)
    for _ in range(EPOCHS):
        body.train()
        run_epoch(session, (Batch(x, y) for x, y in session.batches(rows())), body, loss_of)
        body.eval()
        with torch.no_grad():
            loader = DataLoader(rows(1, 20), batch_size=8)
            held_out = (Batch(x.to(session.device), y.to(session.device)) for x, y in loader)
            print(run_epoch(None, held_out, body, loss_of))
        schedule.step()


@program
def averaging_takes_over(session: Session) -> None:
    """An averaging optimizer takes over once a loss is no better; rates go with the length of each batch's rows."""
    net = session.model(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    optimizer: torch.optim.Optimizer = session.optimizer(
        torch.optim.SGD(net.parameters(), lr=0.3, weight_decay=1e-6), clip_norm=0.25
    )
    losses: list[float] = []
    stored = copy.deepcopy(net.state_dict())
    for number in range(EPOCHS):
        rate = optimizer.param_groups[0]["lr"]
        for x, y in session.batches(rows()):
            length = int(np.random.default_rng(session.global_step).integers(2, 7))
            optimizer.param_groups[0]["lr"] = rate * length / 6
            session.step(F.cross_entropy(net(F.pad(x[:, :length], (0, 6 - length))), y))
        optimizer.param_groups[0]["lr"] = rate
        with torch.no_grad():
            points, labels = (tensor.to(session.device) for tensor in rows(1, 20).tensors)
            losses.append(F.cross_entropy(net(points), labels).item())
        if losses[-1] == min(losses):
            stored = copy.deepcopy(net.state_dict())
        if "t0" not in optimizer.param_groups[0] and (number == 1 or losses[-1] > min(losses)):
            optimizer = session.optimizer(torch.optim.ASGD(net.parameters(), lr=0.1, t0=0, lambd=0.0))
    net.load_state_dict(stored)


@program
def architecture_and_weights(session: Session) -> None:
    """A search: mixtures of operations learn from other rows than their weights do, by turns; the best are shown."""

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.choices = nn.ModuleList(
                [nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Identity()]
            )
            self.head = nn.Linear(6, 3)
            self.mixes = nn.Parameter(1e-3 * torch.randn(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            for mix in self.mixes.softmax(1):
                x = torch.stack(
                    [share * choice(x) for share, choice in zip(mix, self.choices, strict=True)]
                ).sum(0)
            out: Tensor = self.head(x)
            return out

    net = session.model(Cell())
    weights = [p for name, p in net.named_parameters() if name != "mixes"]
    optimizer = session.optimizer(torch.optim.SGD(weights, lr=0.05, momentum=0.9), clip_norm=5.0)
    architect = session.optimizer(torch.optim.Adam([net.mixes], lr=0.03, betas=(0.5, 0.999)))
    schedule = CosineAnnealingLR(optimizer, EPOCHS, eta_min=0.001)
    for _ in range(EPOCHS):
        print(
            schedule.get_last_lr(),
            [int(np.argmax(mix)) for mix in net.mixes.softmax(1).detach().cpu().numpy()],
        )
        both = TensorDataset(*rows().tensors, *rows(3).tensors)
        for by_architect, by_weights in session.steps(both, phases=[architect, optimizer]):
            for _, _, x, y in by_architect:
                session.step(F.cross_entropy(net(x), y))
            for x, y, _, _ in by_weights:
                session.step(F.cross_entropy(net(x), y))
        schedule.step()


PHASED = {"two_domains_by_turns", "architecture_and_weights"}
"""Programs whose steps have phases, which local SGD and servers that lease items refuse."""
RATED = {"student_of_a_momentum_teacher", "rows_by_weights_of_classes", "averaging_takes_over"}
"""Programs whose bodies set rates, which servers that lease items refuse."""
