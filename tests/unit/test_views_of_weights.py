"""A numpy view of a weight that lines between loops change in place is named, where lines that run again miss it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults import FaultPlan
from test_leaving import RING, job, made, rows
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F

from ringleader.parsing import parse
from ringleader.program_text.value_flow import ValueFlow
from ringleader.program_text.variables.augmented_names import AugmentedNames
from ringleader.train import Session
from ringleader.train.between_calls.value_fingerprints import ValueReader
from ringleader.train.state.training_state import TrainingState

torch.set_num_threads(1)
LOOPS = 6
Array = np.ndarray[Any, Any]


def loops(session: Session) -> Iterator[None]:
    """Loops of a few steps, each with what its caller does behind it."""
    data = rows()
    net = session._held.models[0]
    for _ in range(LOOPS):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
        yield


def view(net: Any) -> Array:
    array: Array = net[2].weight.detach().numpy()
    return array


def changed(session: Session) -> None:
    weights = view(made(session))
    for _ in loops(session):
        weights *= 0.7


def in_a_dict(session: Session) -> None:
    views = {name: p.detach().numpy() for name, p in made(session).named_parameters()}
    for _ in loops(session):
        for name in views:
            views[name] *= 0.8


def decay(array: Array) -> None:
    array *= 0.7


def by_a_function(session: Session) -> None:
    weights = view(made(session))
    for _ in loops(session):
        decay(weights)


class Holder:
    def __init__(self, net: Any) -> None:
        self.weights = view(net)

    def decay(self) -> None:
        self.weights *= 0.7


def in_an_object(session: Session) -> None:
    holder = Holder(made(session))
    for _ in loops(session):
        holder.decay()


def at_the_top(session: Session) -> None:
    weights = view(made(session))
    weights *= 0.5
    for _ in loops(session):
        pass


def anew(session: Session) -> None:
    net = made(session)
    for _ in loops(session):
        weights = view(net)
        weights *= 0.7


def no_view(session: Session) -> None:
    total = view(made(session)).copy()
    for _ in loops(session):
        total += np.random.default_rng().normal()
        print(total.mean())


def told(program: Callable[[Session], None], place: Path) -> set[str]:
    """The variables that are named where a third worker joins before the first step of the third loop."""
    spec = job(RING, workers={"min": 2, "max": 2})
    faults = FaultPlan().resize(at_step=12, workers_min=2, workers_max=3)
    for name in ("w0", "w1"):
        faults = faults.hold(name, at_step=12, for_generation=2)
    play = ThreadedCast(spec, program, faults, artifacts=place).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert len(play.plans) > 1
    return {finding["variable"] for finding in play.reported("program.differs")}


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (changed, "weights"),
        (in_a_dict, "views"),
        (by_a_function, "weights"),
        (in_an_object, "holder.weights"),
    ],
)
def test_a_view_that_is_changed_in_place_is_named(
    program: Callable[[Session], None], name: str, tmp_path: Path
) -> None:
    assert told(program, tmp_path) == {name}


@pytest.mark.parametrize("program", [at_the_top, anew, no_view])
def test_one_that_lines_which_run_again_change_alike_is_not(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    assert told(program, tmp_path) == set()


def test_a_view_is_told_from_a_copy() -> None:
    held, net = TrainingState(), nn.Linear(3, 2)
    held.models.append(net)
    array, reader = net.weight.detach().numpy(), ValueReader(held, {})
    for value in (array, array[1:], [array], {"w": array}, (1, array)):
        assert reader.shows_weights(value)
    for value in (array.copy(), [array.copy()], net.weight, 0.7, {}):
        assert not reader.shows_weights(value)


TEXT = """
def train(session, w):
    w *= 0.5
    first(session)
    for _ in range(9):
        second(session)
        w *= 0.7
        third(session)
    last(session)
"""


@pytest.mark.parametrize(
    ("before", "now", "ran"),
    [(0, 4, True), (4, 6, False), (6, 8, True), (8, 6, False), (6, 6, True), (8, 9, False), (9, 4, True)],
)
def test_a_line_ran_that_stands_between_two_calls(before: int, now: int, ran: bool) -> None:
    tree = parse(TEXT)
    names: dict[str, Any] = {}
    exec(TEXT, names)
    augmented = AugmentedNames(tree, ValueFlow(tree))
    assert augmented.may_have_run(("train", "w"), names["train"].__code__, before, now) is ran
