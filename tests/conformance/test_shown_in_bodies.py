"""What a body measures and shows is no state: meters of another file, stopwatches, attributes as loop variables."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from programs import EPOCHS, Program, accuracy, network, rows, sgd
from programs_of_strangers import Meter, learner_of_callbacks
from test_carried import SPEC, warned
from test_programs import ALL, keeps_its_bits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from ringleader.train import Session
from ringleader.train.local import run_local


def stopwatch_for_meters(session: Session) -> None:
    """As the ImageNet example of torch has it, and most that follow it."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        batch_time, data_time, losses = Meter(), Meter(), Meter()
        end = time.time()
        for number, (x, y) in enumerate(session.batches(rows())):
            data_time.update(time.time() - end)
            loss = F.cross_entropy(net(x), y)
            losses.update(loss.item(), len(x))
            session.step(loss)
            batch_time.update(time.time() - end)
            end = time.time()
            if number % 2 == 0:
                print(number, batch_time.avg, data_time.avg, losses.avg)


class Progress:
    """Counters for people alone, one of which has the name of a method of torch's."""

    def __init__(self) -> None:
        self.step, self.samples = 0, 0


def train_epoch(
    session: Session, batches: Iterable[Any], net: nn.Module, progress: Progress
) -> tuple[float, float]:
    """A helper that is given the batches: its means divide by counts of the body."""
    total, seen, hits = 0.0, 0, 0
    for x, y in batches:
        out = net(x)
        loss = F.cross_entropy(out, y)
        session.step(loss)
        progress.step += 1
        progress.samples += len(x)
        total += loss.item() * len(x)
        seen += len(x)
        hits += int((out.argmax(1) == y).sum())
    return total / seen, hits / seen


def batches_given_to_a_helper(session: Session) -> None:
    net = session.model(network())
    schedule = StepLR(sgd(session, net), 1, gamma=0.7)
    progress = Progress()
    for number in range(EPOCHS):
        loss, share = train_epoch(session, session.batches(rows()), net, progress)
        print(number, loss, share, progress.step, progress.samples)
        schedule.step()


def batches_taken_by_next(session: Session) -> None:
    """Slices by `next`, as endless loaders are read; the last one is still there when the program scores."""
    net = session.model(network())
    optimizer = sgd(session, net)
    for number in range(EPOCHS):
        batches = iter(session.batches(rows()))
        while number % 2:
            try:
                x, y = next(batches)
            except StopIteration:
                break
            session.step(F.cross_entropy(net(x), y))
        batch = next(batches, None)
        while batch is not None:
            session.step(F.cross_entropy(net(batch[0]), batch[1]))
            batch = next(batches, None)
        optimizer.param_groups[0]["lr"] = 0.05 * (1.5 - accuracy(session, net))


def meters_of_both_loops(session: Session) -> None:
    """The mean of a score that was taken between loops sets the rate; the one of the body's losses is shown."""
    net = session.model(network())
    optimizer = sgd(session, net)
    losses, hits = Meter(), Meter()
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            session.step(loss)
            losses.update(loss.item(), len(x))
        hits.update(accuracy(session, net), 20)
        print(losses.avg)
        optimizer.param_groups[0]["lr"] = 0.05 * (1.5 - hits.avg)


def weighted_by_turns(session: Session, batches: Iterable[Any], net: nn.Module) -> None:
    turns = 0.0
    for x, y in batches:
        session.step(F.cross_entropy(net(x), y) * (1 + turns))
        turns += 0.1


def turns_counted_in_a_helper(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    weighted_by_turns(session, session.batches(rows()), net)


def loss_by_the_clock(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    end = time.time()
    for x, y in session.batches(rows()):
        slower = 1 + (time.time() - end)
        session.step(slower * F.cross_entropy(net(x), y))
        end = time.time()


SHOWING = [
    stopwatch_for_meters,
    batches_taken_by_next,
    meters_of_both_loops,
    batches_given_to_a_helper,
    learner_of_callbacks,
]


@pytest.mark.parametrize("program", SHOWING, ids=lambda each: each.__name__)
def test_what_a_body_shows_is_neither_warned_of_nor_compared(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, program.__name__, program)
    finished, recorded = run_local(SPEC, program, tmp_path / "alone")
    assert (finished.reproducible_why, warned(recorded)) == ("", [])
    for mode in ("ring", "servers"):
        keeps_its_bits(program.__name__, mode, "kill-9", tmp_path / mode)


def test_what_the_turns_of_a_helper_carry_is_warned_of(tmp_path: Path) -> None:
    finished, recorded = run_local(SPEC, turns_counted_in_a_helper, tmp_path)
    (told,) = warned(recorded)
    assert "changes turns (test_shown_in_bodies.py" in told
    assert "turns (test_shown_in_bodies.py" in finished.reproducible_why


def test_a_stopwatch_that_a_loss_depends_on_is_warned_of(tmp_path: Path) -> None:
    _, recorded = run_local(SPEC, loss_by_the_clock, tmp_path)
    (told,) = warned(recorded)
    assert "changes end (test_shown_in_bodies.py" in told
