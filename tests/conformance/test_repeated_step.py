"""Where no process can check a program beside its job, the job itself computes the first step of each loop twice: what
a body keeps for itself is found, and an ordinary program keeps its bits."""

import multiprocessing as mp
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hidden
import programs
import pytest
import torch
from cast import Cast
from faults import FaultPlan
from hidden import HIDDEN, KEPT, KEPT_DRAWS, LINE, Warming
from play import Play
from programs import BATCH, STEPS, epoch, network, norm_free, rows, sgd
from test_check_beside import MODES, Made, job, line_of
from torch import Tensor, nn
from torch.nn import functional as F
from waiting import wait_for

from ringleader.errors import ExchangeBroken
from ringleader.train import Session
from ringleader.train.program_check.background import CheckWorkspace
from ringleader.train.program_check.repeated_step import HOW_LEFT


def play(
    function: Callable[[Session], None],
    place: Path,
    faults: FaultPlan | None = None,
    *,
    checked: bool = True,
    **more: Any,
) -> Play:
    named: Any = getattr(function, "func", function)  # of a partial
    spec = job(f"{named.__module__}:{named.__name__}", place, **more)
    beside = CheckWorkspace(Made(place), after_s=0.0, niceness=0, most_bytes=0) if checked else None
    return Cast(spec, function, faults or FaultPlan(), artifacts=place, beside=beside).play()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_body_keeps_for_itself_is_found_without_a_process(
    name: str, mode: str, tmp_path: Path
) -> None:
    told = play(HIDDEN[name], tmp_path, **MODES[mode])
    assert (told.outcome, Made(tmp_path).count) == ("succeeded", 0), (told.reason, told.message)
    found = {(data["variable"], line_of(data["line"])) for data in told.reported("program.differs")}
    # Where a worker has two turns of a step it also sees the value change, and may have told of that first.
    assert {("loop body", LINE)} == {each for each in found if not each[0].startswith(("loss_of.", "seen"))}
    named = {variable for variable, _ in found}
    assert all(any(each in end.reproducible_why for each in named) for end in told.finished.values())
    assert {end.reproducible for end in told.finished.values()} == {False}


@pytest.mark.parametrize(
    "mode",
    [
        {"workers": {"min": 3, "max": 3}},
        {**MODES["servers"], "sync": {**MODES["servers"]["sync"], "servers": 1}},
    ],
    ids=["ring", "server"],
)
def test_what_all_members_find_in_a_repeated_step_is_told_once(mode: dict[str, Any], tmp_path: Path) -> None:
    told = play(HIDDEN["attribute_of_a_loss"], tmp_path, **mode)
    assert told.outcome == "succeeded", (told.reason, told.message)
    found = [data["variable"] for data in told.reported("program.differs")]
    assert (found.count("loop body"), {*found}) == (1, {"loop body", "loss_of.calls"})
    assert all(any(each in end.reproducible_why for each in found) for end in told.finished.values())
    assert {end.reproducible for end in told.finished.values()} == {False}


@pytest.mark.parametrize("name", KEPT_DRAWS)
def test_random_values_that_a_program_keeps_are_found_without_a_process(name: str, tmp_path: Path) -> None:
    told = play(getattr(hidden, name), tmp_path, **MODES["ring"])
    found = {(data["variable"], line_of(data["line"])) for data in told.reported("program.differs")}
    assert found == {KEPT_DRAWS[name]}


@pytest.mark.parametrize("name", KEPT)
def test_of_what_is_the_same_on_every_worker_nothing_is_named(name: str, tmp_path: Path) -> None:
    told = play(getattr(hidden, name), tmp_path, **MODES["ring"])
    assert (told.outcome, told.reported("program.differs")) == ("succeeded", []), (told.reason, told.message)


@pytest.mark.parametrize(("worker", "step"), [("w0", 0), ("w1", 0), ("w1", 4)])
def test_a_worker_lost_at_a_repeated_step_changes_no_bit(worker: str, step: int, tmp_path: Path) -> None:
    function = programs.PROGRAMS["plateau"]
    faults = FaultPlan().kill(worker, at_step=step)
    told = play(function, tmp_path, faults, workers={"min": 1, "max": 2})
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert len(told.plans) > 1
    alone = play(function, tmp_path, checked=False)
    assert (told.digest, told.reported("program.differs")) == (alone.digest, [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["best_weights_in_a_variable", "plateau"])
def test_an_ordinary_program_keeps_its_bits_where_a_step_is_computed_twice(
    name: str, mode: str, tmp_path: Path
) -> None:
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    function = programs.PROGRAMS[name]
    twice = play(function, tmp_path / "with", **MODES[mode])
    once = play(function, tmp_path / "without", checked=False, **MODES[mode])
    assert twice.outcome == "succeeded", (twice.reason, twice.message)
    assert twice.digest == once.digest
    assert twice.reported("program.differs") == []
    assert {(end.reproducible, end.reproducible_why) for end in twice.finished.values()} == {(True, "")}


def counting(session: Session, place: Path, *, servers_ask: bool = True) -> None:
    """Each member leaves a file for each step that it computed twice. The second loop in the text is a bad one."""
    repeated = session._member.beside.repeated
    if mp.current_process().name.startswith("s") and not servers_ask:
        session._member.beside._wanted = None
    keep = repeated.keep

    def note(*first: Any) -> None:
        (place / f"{mp.current_process().name} repeats {session.global_step}").touch()
        keep(*first)

    repeated.keep = note  # type: ignore[method-assign]
    net = session.model(network())
    sgd(session, net)
    epoch(session, net, rows(count=STEPS * BATCH))
    loss_of = Warming()
    for x, y in session.batches(rows()):
        session.step(loss_of(net(x), y))


def test_who_comes_later_asks_for_no_repeated_step(tmp_path: Path) -> None:
    faults = FaultPlan().kill("w1", at_step=5).hold("w0", at_step=10, for_generation=3)
    told = play(partial(counting, place=tmp_path), tmp_path, faults, workers={"min": 1, "max": 2})
    assert (told.outcome, told.worlds) == ("succeeded", [2, 1, 2]), (told.reason, told.message)
    assert {each.name for each in tmp_path.glob("* repeats *")} == {
        f"{worker} repeats {step}" for worker, step in (("w0", 0), ("w1", 0), ("w0", STEPS), ("w2", STEPS))
    }


def test_workers_ask_for_a_repeated_step_where_servers_need_none(tmp_path: Path) -> None:
    """Servers without a GPU beside workers that have one."""
    told = play(partial(counting, place=tmp_path, servers_ask=False), tmp_path, **MODES["servers"])
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert {data["variable"] for data in told.reported("program.differs")} == {"loop body", "loss_of.calls"}


def ahead(session: Session, place: Path, *, breaks: bool) -> None:
    """The exchange of a repeated step breaks on server s1, once s0 has made that step."""
    mode: Any = session._steps
    net = session.model(norm_free())
    optimizer = sgd(session, net)
    if mp.current_process().name == "s0":
        optimizer.register_step_post_hook(lambda *_: (place / "made").touch())
    if mp.current_process().name == "s1" and breaks:
        exchange = mode._exchange_word

        def once() -> Any:
            reduced = exchange()
            if mode._twice._first is not None:
                mode._exchange_word = exchange
                wait_for("the step of s0", (place / "made").exists)
                raise ExchangeBroken(rank=1, phase="exchange", bucket=None, why="this test says so")
            return reduced

        mode._exchange_word = once
    for _ in range(2):
        epoch(session, net, rows())


def test_no_step_is_repeated_that_a_server_has_made_already(tmp_path: Path) -> None:
    """It would publish the weights behind that step."""
    broken, whole = (
        play(partial(ahead, place=tmp_path, breaks=breaks), tmp_path, **MODES["servers"])
        for breaks in (True, False)
    )
    assert (broken.outcome, len(broken.plans)) == ("succeeded", 2), (broken.reason, broken.message)
    assert broken.digest == whole.digest


TWO_SLICES = {"batch": {"global_size": BATCH, "logical_shards": 2}}
"""One for each of two workers."""
SHORT_ROUNDS = {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 1}


def stops_behind_its_step(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for _ in range(2):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            if session.global_step % 2 == 0:
                session.stop()


@pytest.mark.parametrize("sync", ["ring", SHORT_ROUNDS], ids=["ring", "local_sgd"])
def test_what_asks_behind_a_repeated_step_for_the_end_ends_the_loop_where_it_would(
    sync: Any, tmp_path: Path
) -> None:
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    more = MODES["ring"] | TWO_SLICES | {"sync": sync}
    twice = play(stops_behind_its_step, tmp_path / "with", **more)
    once = play(stops_behind_its_step, tmp_path / "without", checked=False, **more)
    assert twice.outcome == "succeeded", (twice.reason, twice.message)
    assert twice.digest == once.digest


def reads_the_loss(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))
        print(f"{session.global_step}: {session.loss:.3f}")


def leaves_behind_a_step(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for _ in range(3):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            break


# In a round of local SGD there is nothing to see behind its first batch, nor may the loop be left there.
@pytest.mark.parametrize("mode", ["ring", "servers"])
@pytest.mark.parametrize("function", [reads_the_loss, leaves_behind_a_step])
def test_behind_a_repeated_step_the_body_sees_what_it_makes(
    function: Callable[[Session], None], mode: str, tmp_path: Path
) -> None:
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    checked = play(function, tmp_path / "with", **MODES[mode], **TWO_SLICES)
    assert checked.outcome == "succeeded", (checked.reason, checked.message)
    alone = play(function, tmp_path / "without", checked=False, **MODES[mode], **TWO_SLICES)
    assert (checked.digest, checked.reported("program.differs")) == (alone.digest, [])


class Enough(Exception):
    pass


def end(session: Session) -> None:
    if session.loss is not None:
        raise Enough


def leaves_unseen(session: Session) -> None:
    net = session.model(network())
    sgd(session, net)
    for _ in range(3):
        try:
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))
                end(session)
        except Enough:
            pass
    epoch(session, net, rows())


def test_a_body_that_leaves_between_the_two_times_is_told(tmp_path: Path) -> None:
    told = play(leaves_unseen, tmp_path, **MODES["ring"], **TWO_SLICES)
    assert told.outcome == "succeeded", (told.reason, told.message)
    assert [data["how"] for data in told.reported("program.differs")] == [HOW_LEFT]


class InTurn:
    """One of two parts, by a count of its own."""

    def __init__(self, *parts: nn.Module) -> None:
        self.parts, self.calls = parts, 0

    def __call__(self, x: Tensor) -> Any:
        self.calls += 1
        return self.parts[self.calls % 2](x)


def trains_parts_in_turn(session: Session) -> None:
    net = InTurn(*(session.model(nn.Linear(6, 3)) for _ in range(2)))
    session.optimizer(torch.optim.SGD([p for part in net.parts for p in part.parameters()], lr=0.05))
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))


class Warmup:
    """A rate by a count of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.group, self.calls = optimizer.param_groups[0], 0

    def step(self) -> None:
        self.calls += 1
        self.group["lr"] = 0.05 * min(1.0, self.calls / 20)


def warms_up(session: Session) -> None:
    net = session.model(network())
    warmup = Warmup(sgd(session, net))
    for x, y in session.batches(rows()):
        warmup.step()
        session.step(F.cross_entropy(net(x), y))


COUNTS = {"trains_parts_in_turn": "net.calls", "warms_up": "warmup.calls"}
"""The attribute in which each of these counts."""


@pytest.mark.parametrize("function", [trains_parts_in_turn, warms_up])
def test_a_count_is_found_by_the_parts_that_it_trains_and_the_rates_that_it_sets(
    function: Callable[[Session], None], tmp_path: Path
) -> None:
    told = play(function, tmp_path, **MODES["ring"], **TWO_SLICES)
    assert told.outcome == "succeeded", (told.reason, told.message)
    found = {data["variable"] for data in told.reported("program.differs")}
    assert found == {"loop body", COUNTS[function.__name__]}
    assert {end.reproducible for end in told.finished.values()} == {False}
