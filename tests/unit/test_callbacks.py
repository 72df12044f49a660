"""What `on_commit` callbacks change and nobody keeps is told by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_session import SPEC, net, rows
from torch import Tensor, nn
from torch.nn import functional as F

import ringleader
from ringleader.train.local import run_local

SEEN: list[int] = []


class Average:
    """Of weights, by hand."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values = [parameter.detach().clone() for parameter in model.parameters()]

    def update(self) -> None:
        for value, parameter in zip(self.values, self.model.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        self.values = state["values"]


def by_method(session: ringleader.Session, model: nn.Module) -> None:
    session.on_commit(Average(model).update)


def by_lambda(session: ringleader.Session, model: nn.Module) -> None:
    average = Average(model)
    session.on_commit(lambda: average.update() if session.global_step else None)


def by_count(session: ringleader.Session, _: nn.Module) -> None:
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    session.on_commit(tick)


def by_global(session: ringleader.Session, _: nn.Module) -> None:
    session.on_commit(lambda: SEEN.append(session.global_step))


def kept(session: ringleader.Session, model: nn.Module) -> None:
    average = Average(model)
    session.keep("average", average)
    session.on_commit(average.update)
    session.on_commit(lambda: average.update() if session.global_step else None)


def weights(session: ringleader.Session, model: nn.Module) -> None:
    def pull() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.999)

    session.on_commit(pull)


class Odd(dict[str, int]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("not now")


def odd(session: ringleader.Session, _: nn.Module) -> None:
    what = Odd()
    session.on_commit(lambda: what.update(a=1))


def shows(session: ringleader.Session, _: nn.Module) -> None:
    session.on_commit(lambda: print(session.global_step))


def told(register: Callable[[ringleader.Session, nn.Module], None], place: Path) -> list[dict[str, Any]]:
    def train(session: ringleader.Session) -> None:
        model = net(session)
        register(session, model)
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))

    _, recorded = run_local(SPEC, train, place)
    return [data for kind, data in recorded.events if kind == "warning"]


@pytest.mark.parametrize(
    ("register", "name"),
    [
        (by_method, "Average.values"),
        (by_lambda, "average.values"),
        (by_count, "count"),
        (by_global, "SEEN"),
    ],
)
def test_what_a_callback_changes_and_nobody_keeps_is_named_once(
    register: Callable[[ringleader.Session, nn.Module], None], name: str, tmp_path: Path
) -> None:
    [warning] = told(register, tmp_path)
    assert warning["about"] == "on_commit"
    assert f" changes {name}, which is not committed" in warning["message"]


@pytest.mark.parametrize("register", [kept, weights, shows, odd])
def test_what_is_committed_with_the_step_is_not(
    register: Callable[[ringleader.Session, nn.Module], None], tmp_path: Path
) -> None:
    assert told(register, tmp_path) == []
