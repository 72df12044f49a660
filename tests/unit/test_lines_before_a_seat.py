"""Who comes in late runs the lines between finished calls while the others train on, and has its seat behind them."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import ANY, FaultPlan
from late_lines import GUARD_S, Notes, behind, die, watch
from play import Play
from test_leaving import RING, ROUNDS, SERVERS, made, rows, worker
from torch.nn import functional as F
from waiting import wait_for

from ringleader.train import Session

torch.set_num_threads(1)
EPOCHS, STEPS = 8, 6
MODES = {"ring": RING, "servers": SERVERS, "local_sgd": ROUNDS}


def train(session: Session) -> None:
    """The rate follows from the weights behind every loop so far."""
    net = made(session)
    optimizer = session._held.optimizers[0][0]
    watch(session)
    norms = []
    for epoch in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        behind(epoch)
        norms.append(net[2].weight.norm().item())
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + sum(norms) / len(norms))


def check(play: Play, notes: Notes) -> None:
    """The program is over, with the bits of one process, and every line that ran again found what it had found."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    for why in [finished.reproducible_why for finished in play.finished.values()]:
        assert not why or why.startswith("optimizers draw")  # all threads seed one generator
    assert play.digest == notes.undisturbed()
    assert play.reported("member.differed") == play.reported("program.differs") == []


def replaced(sync: dict[str, Any]) -> FaultPlan:
    """The second worker dies in the second epoch; the first one takes its time until somebody is in its place."""
    first, second = worker(sync, 0), worker(sync, 1)
    return FaultPlan().kill(second, at_step=8).dawdle(first, from_step=9, for_generation=3)


@pytest.mark.parametrize("mode", MODES)
def test_the_others_commit_steps_while_a_joiner_runs_lines(mode: str, tmp_path: Path) -> None:
    sync, joiner = MODES[mode], worker(MODES[mode], 2)

    def lines(notes: Notes, me: str, epoch: int) -> None:
        if me == joiner and epoch == 0:
            notes.await_steps(3, me)

    notes = Notes(train, sync, lines)
    play = notes.play(replaced(sync), tmp_path)
    check(play, notes)
    assert joiner in play.plans[-1].members
    assert notes.seatless_lines_of(joiner)[:1] == [0]
    assert notes.lines_of(joiner) == list(range(EPOCHS))


@pytest.mark.parametrize("mode", MODES)
def test_a_joiner_runs_on_with_the_calls_that_the_others_finish_meanwhile(mode: str, tmp_path: Path) -> None:
    sync, joiner = MODES[mode], worker(MODES[mode], 2)

    def lines(notes: Notes, me: str, epoch: int) -> None:
        if me == joiner and epoch < 2:
            notes.await_steps(STEPS, me)

    notes = Notes(train, sync, lines)
    play = notes.play(replaced(sync), tmp_path)
    check(play, notes)
    assert joiner in play.plans[-1].members
    assert notes.seatless_lines_of(joiner)[:2] == [0, 1]
    assert notes.lines_of(joiner) == list(range(EPOCHS))


@pytest.mark.parametrize("mode", MODES)
def test_a_joiner_that_is_killed_in_its_lines_is_replaced(mode: str, tmp_path: Path) -> None:
    sync = MODES[mode]
    lost, joiner, next_one = (worker(sync, number) for number in (1, 2, 3))

    def lines(notes: Notes, me: str, epoch: int) -> None:
        if me == joiner:
            die(notes, me)
        if me == next_one and epoch == 0:
            notes.await_steps(1, me)

    notes = Notes(train, sync, lines)
    play = notes.play(replaced(sync), tmp_path)
    check(play, notes)
    assert notes.lines_of(joiner) == [0]
    assert [loss["worker"] for loss in play.reported("worker.lost")] == [lost, joiner]
    assert not any(joiner in plan.members for plan in play.plans)
    assert next_one in play.plans[-1].members
    assert notes.seatless_lines_of(next_one)[:1] == [0]


@pytest.mark.parametrize("mode", MODES)
def test_a_joiner_whose_donor_is_killed_while_it_runs_lines_asks_another_one(
    mode: str, tmp_path: Path
) -> None:
    sync = MODES[mode]
    first, second, joiner = (worker(sync, number) for number in range(3))

    def lines(notes: Notes, me: str, epoch: int) -> None:
        if me == joiner and epoch == 0:
            notes.kill(notes.donors_of(me)[0])
            wait_for("the plan without it", lambda: len(notes.formed) == 2, GUARD_S)
            notes.await_steps(1, me)

    notes = Notes(train, sync, lines)
    faults = FaultPlan().resize(at_step=8, workers_min=1, workers_max=3)
    for each in (first, second):
        faults = faults.dawdle(each, from_step=8, for_generation=3)
    play = notes.play(faults, tmp_path, least=1, most=2)
    check(play, notes)
    asked, *later = [pair.donor for pair in play.pairs if pair.worker == joiner]
    assert [loss["worker"] for loss in play.reported("worker.lost")] == [asked]
    assert later
    assert asked not in later
    assert joiner in play.plans[2].members
    assert notes.seatless_lines_of(joiner)[:1] == [0]
    assert notes.lines_of(joiner) == list(range(EPOCHS))


@pytest.mark.parametrize("mode", MODES)
def test_a_joiner_whose_donor_is_killed_before_it_answers_asks_another_one(mode: str, tmp_path: Path) -> None:
    sync = MODES[mode]
    members = [worker(sync, number) for number in range(2)]
    joiner = worker(sync, 2)
    notes = Notes(train, sync)
    faults = FaultPlan().resize(at_step=8, workers_min=1, workers_max=3)
    for each in members:
        faults = faults.dawdle(each, from_step=8, for_generation=3)
    donor = members[1]  # the first pair's
    play = notes.play(faults.kill(donor, at_step=ANY, phase="met"), tmp_path, least=1, most=2)
    check(play, notes)
    assert [loss["worker"] for loss in play.reported("worker.lost")] == [donor]
    assert joiner in play.plans[2].members
    assert notes.seatless_lines_of(joiner)[:1] == [0]
    assert notes.lines_of(joiner) == list(range(EPOCHS))


@pytest.mark.parametrize("mode", MODES)
def test_a_program_ends_without_a_joiner_that_is_still_in_its_lines(mode: str, tmp_path: Path) -> None:
    sync, joiner = MODES[mode], worker(MODES[mode], 2)
    begun, left = threading.Event(), threading.Event()

    def lines(notes: Notes, me: str, epoch: int) -> None:
        if me == joiner:
            begun.set()
            wait_for("its end", lambda: notes.dead(me), 4 * GUARD_S)  # which comes with that of the play
            left.set()
        elif epoch == EPOCHS - 1:
            assert begun.wait(GUARD_S)

    notes = Notes(train, sync, lines)
    notes.awaited = joiner
    earlier = set(threading.enumerate())  # plays before this one have workers of the same names
    play = notes.play(FaultPlan().kill(worker(sync, 1), at_step=8), tmp_path)
    check(play, notes)
    assert play.worlds == [2, 1]
    assert left.wait(GUARD_S)
    for thread in [thread for thread in set(threading.enumerate()) - earlier if thread.name == joiner]:
        thread.join(GUARD_S)
        assert not thread.is_alive()
    assert notes.lines_of(joiner) == [0]


@pytest.mark.parametrize("mode", MODES)
def test_a_joiner_for_whom_there_is_no_seat_any_more_is_let_go_from_its_lines(
    mode: str, tmp_path: Path
) -> None:
    sync = MODES[mode]
    lost, joiner = worker(sync, 1), worker(sync, 2)
    let_go = threading.Event()

    def lines(notes: Notes, me: str, epoch: int) -> None:
        if me == joiner:
            notes.shrink(1)
            wait_for("its end", lambda: notes.dead(me), GUARD_S)
            let_go.set()
        elif epoch == EPOCHS - 1:
            assert let_go.wait(GUARD_S)

    notes = Notes(train, sync, lines)
    notes.awaited = joiner
    play = notes.play(FaultPlan().kill(lost, at_step=8), tmp_path)
    check(play, notes)
    assert play.worlds == [2, 1]
    assert [loss["worker"] for loss in play.reported("worker.lost")] == [lost]
    assert notes.lines_of(joiner) == [0]


@pytest.mark.parametrize("mode", MODES)
def test_who_is_needed_breaks_off_and_runs_the_other_lines_with_a_seat(mode: str, tmp_path: Path) -> None:
    """Two workers are needed; one of them dies while a third one runs lines."""
    sync = MODES[mode]
    first, second, joiner = (worker(sync, number) for number in range(3))

    def lines(notes: Notes, me: str, epoch: int) -> None:
        if me == joiner and epoch == 0:
            notes.kill(second)
            wait_for("too few", lambda: notes.short, GUARD_S)

    notes = Notes(train, sync, lines)
    faults = FaultPlan().resize(at_step=2 * STEPS + 2, workers_min=2, workers_max=3)
    for each in (first, second):
        faults = faults.dawdle(each, from_step=2 * STEPS + 2, for_generation=2)
    # Or it might be there before the joiner is.
    faults = faults.hold(worker(sync, 3), at_step=ANY, phase="parked", for_generation=2)
    play = notes.play(faults, tmp_path, least=2, most=2)
    check(play, notes)
    assert {first, joiner} <= set(play.plans[1].members)
    assert notes.seatless_lines_of(joiner) == [0]
    assert notes.lines_of(joiner) == list(range(EPOCHS))
