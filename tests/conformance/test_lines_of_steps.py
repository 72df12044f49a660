"""Variables of lines after a step of `session.steps`: what a later step goes on from, what one step makes."""

import copy
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import EPOCHS, accuracy, norm_free, rows, sgd
from test_carried import SPEC, warned
from test_programs import ALL, MOMENTS, keeps_its_bits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from ringleader.train import Session
from ringleader.train.local import run_local


def counter_of_steps(session: Session) -> None:
    """A script's loop: a counter, the best score so far, and its weights."""
    net = session.model(norm_free())
    sgd(session, net)
    number, best, kept = 0, -1.0, net.state_dict()
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            number += 1
            if number % 4 == 0:
                score = accuracy(session, net)
                if score > best:
                    best, kept = score, copy.deepcopy(net.state_dict())
    net.load_state_dict(kept)


def weight_by_lines_of_steps(session: Session) -> None:
    """In the only loop of the program: no later call compares the variable."""
    net, weight = session.model(norm_free()), 1.0
    sgd(session, net)
    for step in session.steps(rows(count=200)):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y) * weight)
        weight *= 0.9


def coefficient_of_each_step(session: Session) -> None:
    """What the lines before a step's phases read of the weights is a number in its losses, and of no later step."""
    net, scale = session.model(nn.Linear(6, 3)), session.model(nn.ParameterDict({"log": torch.zeros(1)}))
    slow = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fast = session.optimizer(torch.optim.Adam(scale.parameters(), lr=0.05))
    for number in range(EPOCHS):
        if number < EPOCHS:
            for by_net, by_scale in session.steps(rows(), phases=[slow, fast]):
                alpha = scale["log"].exp().item()
                for x, y in by_net:
                    session.step(alpha * F.cross_entropy(net(x), y))
                for x, y in by_scale:
                    session.step(scale["log"].exp().mean() * (F.cross_entropy(net(x), y).detach() - 1))
        print(accuracy(session, net))


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    return (F.cross_entropy(logits, labels, reduction="none") ** 2).mean()


def halved(_: nn.Module, __: object, out: Tensor) -> Tensor:
    return out * 0.5


PLAIN = SimpleNamespace(loss=F.cross_entropy)


def trained(session: Session, net: nn.Module, after_six: Callable[[], object], task: Any = PLAIN) -> None:
    """Lines after a step put something in, once."""
    for _ in range(EPOCHS):
        for step in session.steps(rows()):
            for x, y in step:
                session.step(task.loss(net(x), y))
            if session.global_step == 6:
                after_six()


def loss_put_in_after_a_step(session: Session) -> None:
    net, task = session.model(norm_free()), SimpleNamespace(loss=F.cross_entropy)
    sgd(session, net)
    trained(session, net, lambda: setattr(task, "loss", squared), task)


def hook_put_in_after_a_step(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    trained(session, net, lambda: net[0].register_forward_hook(halved))


def hook_of_a_weight_put_in_after_a_step(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    trained(session, net, lambda: net[0].weight.register_hook(lambda gradient: gradient * 0.1))


def hook_of_an_optimizer_put_in_after_a_step(session: Session) -> None:
    net = session.model(norm_free())
    optimizer = sgd(session, net)

    def halve(*_: object) -> None:
        for weight in net.parameters():
            if weight.grad is not None:
                weight.grad.mul_(0.5)

    trained(session, net, lambda: optimizer.register_step_pre_hook(halve))


def callback_put_in_after_a_step(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)

    def shrink() -> None:
        with torch.no_grad():
            net[0].weight.mul_(0.9)

    trained(session, net, lambda: session.on_commit(shrink))


def rate_put_in_after_a_step(session: Session) -> None:
    net = session.model(norm_free())
    schedule = session.scheduler(LambdaLR(sgd(session, net, 0.1), lambda step: 1 / (1 + step)))
    trained(session, net, lambda: schedule.lr_lambdas.__setitem__(0, lambda _: 0.5))


def setting_of_a_layer_changed_after_a_step(session: Session) -> None:
    net = session.model(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)))
    sgd(session, net)
    trained(session, net, lambda: setattr(net[1], "eps", 0.5))


def layer_put_in_after_a_step(session: Session) -> None:
    net = session.model(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    sgd(session, net)
    trained(session, net, lambda: setattr(net, "1", nn.ReLU()))


class Plain:
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)


class Smooth(Plain):
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=0.3)


def object_of_another_class_put_in_after_a_step(session: Session) -> None:
    net, task = session.model(norm_free()), SimpleNamespace(loss=Plain())
    sgd(session, net)
    trained(session, net, lambda: setattr(task, "loss", Smooth()), task)


def forward_of_a_layer_put_in_after_a_step(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    trained(session, net, lambda: setattr(net[1], "forward", torch.relu))


def loss_put_in_after_a_step_of_the_only_loop(session: Session) -> None:
    """No later call compares it."""
    net, task = session.model(norm_free()), SimpleNamespace(loss=Plain())
    sgd(session, net)
    for step in session.steps(rows(count=200)):
        for x, y in step:
            session.step(task.loss(net(x), y))
        if session.global_step == 6:
            task.loss = Smooth()


def variable_of_the_environment_set_after_a_step(session: Session) -> None:
    net = session.model(norm_free())
    sgd(session, net)
    os.environ.pop("SMOOTH", None)
    for step in session.steps(rows(count=200)):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y, label_smoothing=float(os.environ.get("SMOOTH", "0"))))
        if session.global_step == 6:
            os.environ["SMOOTH"] = "0.3"


class Rows:
    """Makes batches of rows."""

    def __init__(self) -> None:
        self.blur: Callable[[Tensor], Tensor] = torch.abs

    def gather(self, items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = (torch.stack(part) for part in zip(*items, strict=True))
        return self.blur(x), y


def function_of_a_collate_put_in_after_a_step(session: Session) -> None:
    """Only the method reads it that makes the batches."""
    net, data = session.model(norm_free()), Rows()
    sgd(session, net)
    for step in session.steps(rows(count=200), collate=data.gather):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y))
        if session.global_step == 6:
            data.blur = torch.square


def function_that_another_program_s_body_sets(session: Session) -> None:
    net, task = session.model(norm_free()), SimpleNamespace(bend=torch.abs)
    sgd(session, net)
    for x, y in session.batches(rows()):
        task.bend = torch.tanh
        session.step(F.cross_entropy(task.bend(net(x)), y))


def function_put_in_after_a_step(session: Session) -> None:
    net, task = session.model(norm_free()), SimpleNamespace(bend=torch.abs)
    sgd(session, net)
    for step in session.steps(rows(count=200)):
        for x, y in step:
            session.step(F.cross_entropy(task.bend(net(x)), y))
        if session.global_step == 6:
            task.bend = torch.square


def set_anew_after_each_step(session: Session) -> None:
    """What the lines after each step set, those after the newest one set on a worker that comes in there."""
    net = session.model(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    sgd(session, net)
    task, weight = SimpleNamespace(loss=Plain()), 1.0
    for step in session.steps(rows(count=200)):
        for x, y in step:
            session.step(task.loss(net(x), y) * weight)
        task.loss = Smooth() if session.global_step % 3 == 0 else Plain()
        net[1].p = 0.5 / (1 + session.global_step)
        weight = 1 / (1 + session.global_step)


MISSED = {
    object_of_another_class_put_in_after_a_step: "the program's task.loss (test_lines_of_steps.py:",
    forward_of_a_layer_put_in_after_a_step: "the set of layers with their settings (above test_lines_of_steps.py:",
    loss_put_in_after_a_step_of_the_only_loop: "the program's task.loss (test_lines_of_steps.py:",
    function_of_a_collate_put_in_after_a_step: "the program's data.blur (test_lines_of_steps.py:",
    function_put_in_after_a_step: "the program's task.bend (test_lines_of_steps.py:",
    weight_by_lines_of_steps: "the program's weight (test_lines_of_steps.py:",
    loss_put_in_after_a_step: "the program's task.loss (test_lines_of_steps.py:",
    hook_put_in_after_a_step: "the set of hooks and callbacks (above test_lines_of_steps.py:",
    hook_of_a_weight_put_in_after_a_step: "the set of hooks and callbacks (above test_lines_of_steps.py:",
    hook_of_an_optimizer_put_in_after_a_step: "the set of hooks and callbacks (above test_lines_of_steps.py:",
    callback_put_in_after_a_step: "the set of hooks and callbacks (above test_lines_of_steps.py:",
    setting_of_a_layer_changed_after_a_step: "the set of layers with their settings (above test_lines_of_steps.py:",
    layer_put_in_after_a_step: "the set of layers with their settings (above test_lines_of_steps.py:",
    rate_put_in_after_a_step: "the set of hooks and callbacks (above test_lines_of_steps.py:",
}


def test_what_lines_of_a_step_leave_to_those_of_a_later_one_is_warned_of(tmp_path: Path) -> None:
    finished, recorded = run_local(SPEC, counter_of_steps, tmp_path)
    told = [message.partition(" (")[0].rpartition(" ")[2] for message in warned(recorded)]
    assert (finished.reproducible_why, sorted(told)) == ("", ["best", "number"])
    assert all("a worker that comes in at a step has not run the lines" in m for m in warned(recorded))


@pytest.mark.parametrize(
    ("program", "moment"),
    [
        *product(MISSED, ["kill-9", "pause-8"]),
        # Its checkpoint is of before the lines after its step.
        (loss_put_in_after_a_step_of_the_only_loop, "restart-12"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_lines_that_a_newcomer_has_missed_are_named_in_the_result(
    program: Callable[[Session], None], moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, program.__name__, program)
    last = MOMENTS[moment].play(program.__name__, "ring", tmp_path)[-1]
    whys = {finished.reproducible_why for finished in last.finished.values()}
    assert whys
    assert all(MISSED[program] in why for why in whys)


def test_a_variable_of_the_environment_that_a_resumed_job_has_not_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = variable_of_the_environment_set_after_a_step.__name__
    monkeypatch.setitem(ALL, name, variable_of_the_environment_set_after_a_step)
    monkeypatch.setenv("SMOOTH", "")  # put back behind the test
    last = MOMENTS["pause-8"].play(name, "ring", tmp_path)[-1]
    whys = {finished.reproducible_why for finished in last.finished.values()}
    assert whys
    assert all("the program's os.environ['SMOOTH'] (test_lines_of_steps.py:" in why for why in whys)


def is_quiet_and_keeps_its_bits(
    program: Callable[[Session], None], moment: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, program.__name__, program)
    _, recorded = run_local(SPEC, program, place / "alone")
    assert warned(recorded) == []
    keeps_its_bits(program.__name__, "ring", moment, place)


@pytest.mark.parametrize("moment", ["kill-9", "pause-8", "follow-6", "restart-12"])
def test_what_each_step_sets_anew_is_that_of_the_others_on_a_newcomer(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_quiet_and_keeps_its_bits(set_anew_after_each_step, moment, tmp_path, monkeypatch)


@pytest.mark.parametrize("moment", ["kill-9", "follow-6"])
def test_what_a_step_makes_for_itself_may_be_another_one_on_a_joiner(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_quiet_and_keeps_its_bits(coefficient_of_each_step, moment, tmp_path, monkeypatch)
