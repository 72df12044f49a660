"""Loops that end after so many turns are refused: a worker's turns are those of its slices."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_body_checks import job, rows
from torch import nn
from torch.nn import functional as F

from ringleader import Session
from ringleader.errors import StepMisuse
from ringleader.train.local import run_local

Loop = Callable[[Session], Iterator[Any]]


def registered(session: Session) -> nn.Module:
    net = session.model(nn.Linear(5, 2))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    return net


def cycle(session: Session) -> Iterator[Any]:
    while session.global_step < 12:
        for batch in session.batches(rows()):
            yield [*batch]


def epochs(session: Session) -> Iterator[Any]:
    while session.global_step < 12:
        yield from session.batches(rows())


COUNTED: dict[str, Loop] = {
    "islice": lambda session: itertools.islice(session.batches(rows()), 4),
    "zip": lambda session: (batch for _, batch in zip(range(4), session.batches(rows()), strict=False)),
}
WHOLE: dict[str, Loop] = {
    "itself": lambda session: session.batches(rows()),
    "mapped": lambda session: map(tuple, session.batches(rows())),
    "a generator's": lambda session: (batch for batch in session.batches(rows())),
}


def program(loop: Loop) -> Callable[[Session], None]:
    def train(session: Session) -> None:
        net = registered(session)
        for x, y in loop(session):
            session.step(F.cross_entropy(net(x), y))

    return train


@pytest.mark.parametrize("name", COUNTED)
def test_a_loop_that_counts_slices_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse) as refused:
        run_local(job("ring"), program(COUNTED[name]), tmp_path)
    assert (
        f"{name.partition(' ')[0]}(…) iterates over session.batches (test_counted.py:"
        in refused.value.message
    )
    assert "session.global_step" in (refused.value.hint or "")


def cut_in_a_variable(session: Session) -> None:
    net = registered(session)
    loader = itertools.islice((batch for batch in cycle(session)), 4)
    for x, y in loader:
        session.step(F.cross_entropy(net(x), y))


def cut_in_the_loop_s_line(session: Session) -> None:
    net = registered(session)
    endless = epochs(session)
    for x, y in itertools.islice(endless, 4):
        session.step(F.cross_entropy(net(x), y))


def cut_elsewhere(session: Session) -> None:
    net = registered(session)
    loader = session.batches(rows())
    for x, y in itertools.islice(loader, 4):
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("train", [cut_in_a_variable, cut_in_the_loop_s_line, cut_elsewhere])
def test_slices_that_are_handed_on_are_not_counted_either(
    train: Callable[[Session], None], tmp_path: Path
) -> None:
    with pytest.raises(StepMisuse, match=r"islice\(…\) iterates over session.batches \(test_counted.py:"):
        run_local(job("ring"), train, tmp_path)


@pytest.mark.parametrize("name", WHOLE)
def test_a_loop_over_all_batches_is_not(name: str, tmp_path: Path) -> None:
    finished, _ = run_local(job("ring"), program(WHOLE[name]), tmp_path)
    assert finished.steps == 3


def left_by_number(session: Session) -> None:
    net = registered(session)
    for turn, (x, y) in enumerate(session.batches(rows())):
        with torch.no_grad():
            if len(x) and turn == 4:
                break
        session.step(F.cross_entropy(net(x), y))


def left_in_a_generator(session: Session) -> None:
    net = registered(session)
    for turn, (x, y) in enumerate(cycle(session)):
        if turn >= 4:
            break
        session.step(F.cross_entropy(net(x), y))


def left_by_a_variable_s_number(session: Session) -> None:
    net = registered(session)
    loader = session.batches(rows())
    for turn, (x, y) in enumerate(loader):
        if turn >= 4:
            return
        session.step(F.cross_entropy(net(x), y))


def stopped_by_number(session: Session) -> None:
    net = registered(session)
    for turn, (x, y) in enumerate(session.batches(rows())):
        if turn == 4:
            session.stop()
        session.step(F.cross_entropy(net(x), y))


def trainings(session: Session, net: nn.Module) -> Iterator[int]:
    """Trains itself, and yields a result of each loop."""
    for _ in range(9):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        yield session.global_step


def results_counted(session: Session) -> None:
    net = registered(session)
    for number, _ in enumerate(trainings(session, net)):
        if number == 1:
            break


def numbered(session: Session) -> None:
    """The number is shown, and leaves a loop of its own; the step leaves this one."""
    net = registered(session)
    for turn, (x, y) in enumerate(session.batches(rows())):
        if session.global_step == 2:
            break
        if turn % 2 == 0:
            print("turn", turn)
        for part in range(3):
            if part == turn:
                break
        session.step(F.cross_entropy(net(x), y))


def test_a_break_by_the_number_of_a_turn_is_refused_where_the_same_bits_are_promised(tmp_path: Path) -> None:
    for train in (left_by_number, left_by_a_variable_s_number, left_in_a_generator, stopped_by_number):
        with pytest.raises(
            StepMisuse, match=r"line \d+ ends a loop by the number .* \(test_counted.py:\d+\)"
        ):
            run_local(job("ring"), train, tmp_path / train.__name__)
    finished, _ = run_local(job("token_ring"), left_by_number, tmp_path)
    assert finished.steps > 0


def test_a_number_that_decides_on_no_break_of_the_loop_is_not(tmp_path: Path) -> None:
    finished, _ = run_local(job("ring"), numbered, tmp_path)
    assert finished.steps == 2


def named_anew(session: Session) -> None:
    """As scripts are ported that count their iterations: `it = len(loader) * epoch + it`."""
    net = registered(session)
    for it, (x, y) in enumerate(session.batches(rows())):
        it = session.global_step  # noqa: PLW2901
        if it >= 2:
            break
        session.step(F.cross_entropy(net(x), y))


def test_a_name_that_a_turn_gives_to_the_step_s_number_is_no_number_of_turns(tmp_path: Path) -> None:
    finished, _ = run_local(job("ring"), named_anew, tmp_path)
    assert finished.steps == 2


def test_results_of_a_generator_that_trains_itself_are_counted_as_the_program_likes(tmp_path: Path) -> None:
    finished, _ = run_local(job("ring"), results_counted, tmp_path)
    assert finished.steps == 6
