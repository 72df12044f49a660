"""Members that hold another state than the others are found before it does harm, named, and given the right one."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from test_leaving import COPIES, LEASED, RING, ROUNDS, SERVER, SERVERS, job, made, rows, worker
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
MODES = {"ring": RING, "servers": SERVERS, "local_sgd": ROUNDS, "leased": LEASED}
SERVED = {"server": SERVER, "servers": SERVERS, "copies": COPIES, "leased": LEASED | {"servers": 2}}
LOOPS = 4
UNDISTURBED = FaultPlan()
every_mode = pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
Odd = Callable[[str, int, Any, torch.optim.Optimizer], None]


class Program:
    """Loops with lines between them that do on some members what they do not do on others."""

    def __init__(self, odd: Odd, sync: dict[str, Any]) -> None:
        self.odd = odd
        # Refused where servers that lease items hold parts.
        self.clip_norm = None if sync == SERVED["leased"] else 1.0

    def __call__(self, session: Session) -> None:
        net, data = made(session, self.clip_norm), rows()
        optimizer = session._held.optimizers[0][0]
        for number in range(LOOPS):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))
            self.odd(threading.current_thread().name, number, net, optimizer)


def played(
    sync: dict[str, Any],
    odd: Odd,
    place: Path,
    faults: FaultPlan = UNDISTURBED,
    *,
    least: int = 3,
    most: int = 3,
) -> Play:
    spec = job(sync, workers={"min": least, "max": most})
    return ThreadedCast(spec, Program(odd, sync), faults, artifacts=place).play()


def alone(sync: dict[str, Any], place: Path) -> str:
    finished, _ = run_local(job(sync), Program(lambda *_: None, sync), place / "alone")
    return finished.digest


@every_mode
def test_a_rate_that_one_member_changes_is_put_right_before_a_step_is_made_with_it(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    odd_one = worker(sync, 1)

    def rate(me: str, number: int, net: Any, optimizer: torch.optim.Optimizer) -> None:
        if me == odd_one and number == 1:
            optimizer.param_groups[0]["lr"] = 0.5

    play = played(sync, rate, tmp_path)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [(d["worker"], d["what"]) for d in play.reported("member.differed")] == [(odd_one, "settings 0")]
    assert play.digest == alone(sync, tmp_path)
    # Who is right of those that ran the lines for the first time nobody can know.
    assert all(
        "differed" in f.reproducible_why or "differs" in f.reproducible_why for f in play.finished.values()
    )


@every_mode
def test_a_weight_that_one_member_changes_is_named_and_put_right(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    odd_one = worker(sync, 2)

    def weight(me: str, number: int, net: Any, optimizer: torch.optim.Optimizer) -> None:
        if me == odd_one and number == 0:
            net[2].bias.data.add_(1.0)

    play = played(sync, weight, tmp_path)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [(d["worker"], d["what"]) for d in play.reported("member.differed")] == [(odd_one, "2.bias")]
    assert play.digest == alone(sync, tmp_path)


class Everything:
    """Registers one of each kind; between two loops one member changes one of them."""

    def __init__(self, odd_one: str, part: str) -> None:
        self.odd_one, self.part = odd_one, part

    def __call__(self, session: Session) -> None:
        net, data = made(session), rows()
        optimizer = session._held.optimizers[0][0]
        schedule = session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.9))
        kept = nn.Linear(1, 1)
        session.keep("kept", kept)
        for number in range(LOOPS):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))
            if threading.current_thread().name == self.odd_one and number == 1:
                changed = {
                    "1.running_mean": lambda: net[1].running_mean.add_(1.0),
                    "optimizer 0's state of 0.weight": lambda: optimizer.state[net[0].weight][
                        "momentum_buffer"
                    ].add_(1.0),
                    "schedules 0": lambda: schedule.__dict__.update(last_epoch=schedule.last_epoch + 1),
                    "kept object 'kept'": lambda: kept.bias.data.add_(1.0),
                }
                changed[self.part]()


EVERYWHERE = ["1.running_mean", "schedules 0", "kept object 'kept'"]
WITH_WORKERS = "optimizer 0's state of 0.weight"
PARTS = [(mode, part) for mode in MODES for part in EVERYWHERE] + [
    ("ring", WITH_WORKERS),
    ("local_sgd", WITH_WORKERS),
]


@pytest.mark.parametrize(("mode", "part"), PARTS)
def test_each_part_of_the_state_is_compared_and_put_right(mode: str, part: str, tmp_path: Path) -> None:
    sync = MODES[mode]
    odd_one = worker(sync, 1)
    spec = job(sync, workers={"min": 3, "max": 3})
    play = ThreadedCast(spec, Everything(odd_one, part), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [(d["worker"], d["what"]) for d in play.reported("member.differed")] == [(odd_one, part)]
    finished, _ = run_local(job(sync), Everything("nobody", part), tmp_path / "alone")
    assert play.digest == finished.digest


@every_mode
def test_members_that_differ_again_and_again_make_the_result_say_so(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    def rates(me: str, number: int, net: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 + 0.001 * int(me[1:])

    play = played(sync, rates, tmp_path)
    whys = {f.reproducible_why for f in play.finished.values()}
    assert len(play.reported("member.differed")) >= 2 * 3
    assert play.outcome == "failed" or all("members differed at 3 session calls" in why for why in whys)


@every_mode
def test_undisturbed_members_never_differ(sync: dict[str, Any], tmp_path: Path) -> None:
    play = played(sync, lambda *_: None, tmp_path)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.reported("member.differed") == []


def scored(session: Session) -> None:
    """Class weights that follow from a confusion matrix, which the score function fills."""
    net, data = made(session), rows()
    confusion = torch.ones(3, 3)

    def score(batch: Any) -> dict[str, Any]:
        x, y = batch
        guess = net(x).argmax(dim=1)
        for row, column in zip(y.tolist(), guess.tolist(), strict=True):
            confusion[row, column] += 1
        return {"accuracy": guess == y}

    for _ in range(LOOPS):
        weights = 1 / confusion.sum(dim=1)
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y, weight=weights))
        session.evaluate(data, score)


@every_mode
def test_a_variable_that_members_have_otherwise_is_named_before_a_step_is_made_with_it(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    spec = job(sync, workers={"min": 3, "max": 3})
    play = ThreadedCast(spec, scored, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    told = play.reported("program.differs")
    assert [(d["variable"], d["how"]) for d in told] == [
        ("weights", "differs between workers"),
        ("confusion", "differs between workers"),
    ]
    assert all("confusion" in finished.reproducible_why for finished in play.finished.values())


@pytest.mark.parametrize("part", ["settings 0", "2.bias"])
@pytest.mark.parametrize("sync", SERVED.values(), ids=SERVED)
def test_a_server_that_is_put_right_keeps_the_optimizers_states(
    sync: dict[str, Any], part: str, tmp_path: Path
) -> None:
    """Workers, of which it takes the rest over, have none."""

    def change(me: str, number: int, net: Any, optimizer: torch.optim.Optimizer) -> None:
        if me == "s0" and number == 1:
            if part == "2.bias":
                with torch.no_grad():
                    net[2].bias.add_(1.0)
            else:
                optimizer.param_groups[0]["lr"] = 0.5

    play = played(sync, change, tmp_path)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [(d["worker"], d["what"]) for d in play.reported("member.differed")] == [("s0", part)]
    assert play.digest == alone(sync, tmp_path)


def dies(sync: dict[str, Any]) -> FaultPlan:
    """A worker dies in the first step of the third loop."""
    return FaultPlan().kill(worker(sync, 1), at_step=12, phase="exchange")


def joins(sync: dict[str, Any]) -> FaultPlan:
    """A third worker is in before the first step of the third loop."""
    faults = FaultPlan().resize(at_step=12, workers_min=2, workers_max=3)
    for number in range(2):
        faults = faults.hold(worker(sync, number), at_step=12, for_generation=2)
    return faults


@pytest.mark.parametrize(("faults", "least", "most"), [(dies, 1, 3), (joins, 2, 2)], ids=["kill", "join"])
@pytest.mark.parametrize("sync", SERVED.values(), ids=SERVED)
def test_a_server_that_changed_its_part_does_not_publish_it_as_a_generation_begins(
    sync: dict[str, Any],
    faults: Callable[[dict[str, Any]], FaultPlan],
    least: int,
    most: int,
    tmp_path: Path,
) -> None:
    """Every server of several is alone in having the newest weights of its part, once it has made a step."""

    @torch.no_grad()
    def change(me: str, number: int, net: Any, optimizer: torch.optim.Optimizer) -> None:
        if me == "s0" and number == 1:  # in a part of each server, however they share
            net[0].weight.add_(1.0)
            net[2].bias.add_(1.0)

    play = played(sync, change, tmp_path, faults(sync), least=least, most=most)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert len(play.plans) > 1
    assert {d["worker"] for d in play.reported("member.differed")} == {"s0"}
    assert play.digest == alone(sync, tmp_path)


def forgets(me: str, number: int, net: Any, optimizer: torch.optim.Optimizer) -> None:
    """One server loses the momentum, of which workers have nothing, so that no fingerprint of the whole state tells."""
    if me == "s1" and number == 1:
        optimizer.state.clear()


@pytest.mark.parametrize("at_step", [13, 25], ids=["stays", "alone at last"])
def test_a_momentum_that_one_of_three_copies_lost_is_put_right_before_it_counts(
    at_step: int, tmp_path: Path
) -> None:
    sync = COPIES | {"servers": 3}
    faults = FaultPlan().kill("s0", at_step=at_step, phase="exchange")
    play = played(sync, forgets, tmp_path, faults)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [d["worker"] for d in play.reported("member.differed")] == ["s1"]
    assert play.reported("member.differed")[0]["what"].startswith("optimizer 0's state of ")
    assert play.digest == alone(sync, tmp_path)


@pytest.mark.parametrize("servers", [2, 3])
def test_a_momentum_that_a_backup_lost_is_told_where_nobody_knows_which_is_right(
    servers: int, tmp_path: Path
) -> None:
    sync = SERVERS | {"servers": servers, "server_backups": 1}
    play = played(sync, forgets, tmp_path, FaultPlan().kill("s0", at_step=13, phase="exchange"))
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {d["what"].partition(" of ")[0] for d in play.reported("member.differed")} == {
        "optimizer 0's state"
    }
    assert all("members differed" in finished.reproducible_why for finished in play.finished.values())


def adam_takes_over(session: Session) -> None:
    net, data = made(session, 1.0), rows()
    for number in range(LOOPS):
        if number == 1:
            session.optimizer(torch.optim.Adam(net.parameters(), lr=0.02))
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))


def test_a_part_is_handed_over_for_an_optimizer_that_the_new_server_has_yet_to_make(tmp_path: Path) -> None:
    """The server that it takes the rest from has nothing of that part."""
    sync = SERVERS | {"servers": 3, "server_backups": 1}
    faults = FaultPlan().kill("s0", at_step=13, phase="exchange")
    for survivor in ("w3", "s1"):
        faults = faults.linger(survivor, since_generation=2, for_generation=3, joined="s6")
    spec = job(sync, workers={"min": 2, "max": 3})
    play = ThreadedCast(spec, adam_takes_over, faults, artifacts=tmp_path).play()
    finished, _ = run_local(job(sync), adam_takes_over, tmp_path / "alone")
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert "s6" in play.plans[-1].members
    assert play.reported("member.differed") == []
    assert play.digest == finished.digest


@pytest.mark.parametrize("sync", [COPIES, SERVERS | {"server_backups": 1}], ids=["copies", "backups"])
def test_states_that_every_server_changes_alike_do_not_differ(sync: dict[str, Any], tmp_path: Path) -> None:
    def forget(me: str, number: int, net: Any, optimizer: torch.optim.Optimizer) -> None:
        if number == 1:
            optimizer.state.clear()

    play = played(sync, forget, tmp_path, FaultPlan().kill("s0", at_step=13, phase="exchange"))
    finished, _ = run_local(job(sync), Program(forget, sync), tmp_path / "alone")
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.reported("member.differed") == []
    assert play.digest == finished.digest


def banked(session: Session) -> None:
    """Has the statistics of each epoch in a list, and puts them into the model by assignment."""
    net = session.model(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)))
    for weight in net.parameters():  # the members are threads, which share their generator
        nn.init.constant_(weight, 0.1)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    means = [torch.full((5,), float(number)) for number in range(LOOPS)]
    for mean in means:
        net[0].running_mean = mean
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))


def test_a_variable_that_holds_a_buffer_is_named_with_copy_in_its_cure(tmp_path: Path) -> None:
    spec, saved = job(RING, workers={"min": 1, "max": 1}), str(tmp_path / "saved")
    pause = FaultPlan().pause(at_step=8)
    first = ThreadedCast(spec, banked, pause, artifacts=tmp_path / "1", checkpoints=saved).play()
    again = ThreadedCast(spec, banked, artifacts=tmp_path / "2", checkpoints=saved, attempt=2).play()
    assert (first.outcome, again.outcome) == ("paused", "succeeded")
    (told,) = again.reported("program.differs")
    assert told["variable"] == "means"
    assert told["cure"].startswith("give a buffer or weight its values with copy_")
