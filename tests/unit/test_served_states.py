"""What an optimizer keeps where parameter servers have it: a program may clear, set and keep it, and put it back. What
it reads of it is refused, with its line, before it decides anything by it."""

import copy
import io
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_body_checks import MODES, job, rows
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F

from ringleader import Session
from ringleader.spec import JobSpec
from ringleader.train.local import run_local

torch.set_num_threads(1)
SERVERS: dict[str, Any] = {
    "1 server": MODES["servers"],
    "2 servers": MODES["servers"] | {"servers": 2},
    "copies": MODES["servers"] | {"inter_node": "ring", "servers": 2},
    "leased": MODES["leased"],
}
Line = Callable[[torch.optim.Optimizer, nn.Module], Any]


class Between:
    """A training function with a line between its loops, or in their bodies, or in a callback."""

    def __init__(self, line: Line, *, where: str = "between") -> None:
        self.line, self.where = line, where

    def __call__(self, session: Session) -> None:
        net = session.model(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)))
        for weight in net.parameters():  # the cast's members are threads, which share their generator
            nn.init.constant_(weight, 0.1)
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        if self.where == "callback":
            session.on_commit(lambda: self.line(optimizer, net))
        for _ in range(3):
            for x, y in session.batches(rows()):
                if self.where == "body":
                    self.line(optimizer, net)
                session.step(F.cross_entropy(net(x), y))
            if self.where == "between":
                self.line(optimizer, net)


def first(net: nn.Module) -> nn.Parameter:
    return next(net.parameters())


READS: dict[str, Line] = {
    "item": lambda o, n: o.state[first(n)]["momentum_buffer"],
    "in": lambda o, n: "momentum_buffer" in o.state[first(n)],
    "parameter in": lambda o, n: first(n) in o.state,
    "get": lambda o, n: o.state.get(first(n), {}).get("momentum_buffer"),
    "values": lambda o, n: [state["momentum_buffer"] for state in o.state.values()],
    "items": lambda o, n: [dict(state) for _, state in o.state.items()],
    "length": lambda o, n: len(o.state),
    "truth": lambda o, n: bool(o.state),
    "saved": lambda o, n: o.state_dict()["state"][0]["momentum_buffer"],
    "saved values": lambda o, n: [dict(state) for state in o.state_dict()["state"].values()],
    "saved and copied": lambda o, n: copy.deepcopy(o.state_dict())["state"][0]["momentum_buffer"],
    "written": lambda o, n: torch.save(o.state_dict(), io.BytesIO()),
    "in place": lambda o, n: o.state[first(n)]["momentum_buffer"].mul_(0.5),
    "a copy": lambda o, n: copy.deepcopy(o).state[first(n)]["momentum_buffer"],
    "a copy's": lambda o, n: o.load_state_dict(copy.deepcopy(o).state_dict()),
    "loaded into one that is not registered": lambda o, n: torch.optim.SGD(
        n.parameters(), lr=0.1, momentum=0.9
    ).load_state_dict(o.state_dict()),
    "moved to another parameter": lambda o, n: o.state.update(
        dict(zip(n.parameters(), list(o.state.values())[::-1], strict=True))
    ),
    "behind a load": lambda o, n: (o.load_state_dict(o.state_dict()), o.state[first(n)]["momentum_buffer"]),
}


def played(line: Line, mode: str, place: Path, *, where: str = "between") -> Any:
    spec = JobSpec.parse(job(SERVERS[mode]))
    return ThreadedCast(spec, Between(line, where=where), artifacts=place).play()


def refused(play: Any) -> None:
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised"), play.message
    assert "was read (test_served_states.py:" in play.message
    assert "sync: ring" in play.message


@pytest.mark.parametrize("read", READS)
def test_what_is_read_is_refused_with_the_line_and_the_cure(read: str, tmp_path: Path) -> None:
    refused(played(READS[read], "2 servers", tmp_path))


@pytest.mark.parametrize("mode", SERVERS)
def test_it_is_refused_wherever_servers_step(mode: str, tmp_path: Path) -> None:
    refused(played(READS["item"], mode, tmp_path))


@pytest.mark.parametrize("where", ["body", "callback"])
def test_bodies_and_callbacks_read_it_as_little(where: str, tmp_path: Path) -> None:
    refused(played(READS["item"], "2 servers", tmp_path, where=where))


def anew(optimizer: torch.optim.Optimizer, _: nn.Module) -> None:
    optimizer.state = defaultdict(dict)


def cleared_one_by_one(optimizer: torch.optim.Optimizer, _: nn.Module) -> None:
    for state in optimizer.state.values():
        state.clear()


def removed(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    del optimizer.state[first(net)]


def without_momentum(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    for parameter in net.parameters():
        del optimizer.state[parameter]["momentum_buffer"]


def set_by_hand(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    for parameter in net.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, 0.01)


def popped_and_set(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
    for parameter in net.parameters():
        optimizer.state[parameter] = optimizer.state.pop(parameter)


class Kept:
    """The state of the first epoch comes back behind each of the others; each member, a thread, has its own."""

    def __init__(self) -> None:
        self.own = threading.local()

    def __call__(self, optimizer: torch.optim.Optimizer, _: nn.Module) -> None:
        if hasattr(self.own, "saved"):
            optimizer.load_state_dict(self.own.saved)
        else:
            self.own.saved = copy.deepcopy(optimizer.state_dict())


WRITES: dict[str, Callable[[], Line]] = {
    "cleared": lambda: lambda o, n: o.state.clear(),
    "anew": lambda: anew,
    "cleared one by one": lambda: cleared_one_by_one,
    "removed": lambda: removed,
    "without momentum": lambda: without_momentum,
    "set": lambda: set_by_hand,
    "popped and set": lambda: popped_and_set,
    "kept": Kept,
    "copied": lambda: lambda o, n: copy.deepcopy((o, n)),
    "printed": lambda: lambda o, n: print(o, repr(o.state)),
}


@pytest.mark.parametrize("mode", ["1 server", "2 servers", "copies"])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_whole_has_the_bits_of_a_ring(write: str, mode: str, tmp_path: Path) -> None:
    alone, _ = run_local(job("ring"), Between(WRITES[write]()), tmp_path / "alone")
    play = played(WRITES[write](), mode, tmp_path)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    assert play.reported("member.differed") == []
    assert {end.reproducible_why for end in play.finished.values()} == {""}


class TwoNetworks:
    """The optimizer of one network begins anew with the other one's state, as in population-based training."""

    def __init__(self, *, same: bool) -> None:
        self.same = same

    def __call__(self, session: Session) -> None:
        first, second = (session.model(nn.Linear(5, 2)) for _ in range(2))
        for weight in (*first.parameters(), *second.parameters()):
            nn.init.constant_(weight, 0.1)
        of_first = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
        of_second = torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9)
        session.optimizer(of_first)
        session.optimizer(of_second)
        for number in range(3):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(first(x), y) + F.cross_entropy(second(x), y) * number)
            if self.same:
                anew = session.optimizer(torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9))
                anew.load_state_dict(copy.deepcopy(of_first.state_dict()))
                of_first = anew
            else:
                of_second.load_state_dict(copy.deepcopy(of_first.state_dict()))


@pytest.mark.parametrize("mode", SERVERS)
def test_a_state_is_not_loaded_for_other_parameters(mode: str, tmp_path: Path) -> None:
    play = ThreadedCast(JobSpec.parse(job(SERVERS[mode])), TwoNetworks(same=False), artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised"), play.message
    assert "loaded into one of other parameters (test_served_states.py:" in play.message
    assert "copy the settings alone" in play.message


@pytest.mark.parametrize("mode", ["1 server", "2 servers", "copies"])
def test_an_optimizer_made_anew_goes_on_with_the_state_of_the_one_before(mode: str, tmp_path: Path) -> None:
    alone, _ = run_local(job("ring"), TwoNetworks(same=True), tmp_path / "alone")
    play = ThreadedCast(JobSpec.parse(job(SERVERS[mode])), TwoNetworks(same=True), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    assert {end.reproducible_why for end in play.finished.values()} == {""}


@pytest.mark.parametrize("mode", SERVERS)
def test_a_registered_optimizer_is_not_stepped_by_hand(mode: str, tmp_path: Path) -> None:
    play = played(lambda o, n: o.step(), mode, tmp_path)
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised"), play.message
    assert "SGD.step() was called between session calls (test_served_states.py:" in play.message
    assert "Use an optimizer that is not registered" in play.message


@pytest.mark.parametrize("mode", ["ring", "local_sgd"])
def test_workers_that_have_it_all_read_and_step_as_they_like(mode: str, tmp_path: Path) -> None:
    def read_and_step(optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (
            1 + optimizer.state[first(net)]["momentum_buffer"].norm().item()
        )
        optimizer.step()

    alone, _ = run_local(job(MODES[mode]), Between(read_and_step), tmp_path / "alone")
    play = ThreadedCast(JobSpec.parse(job(MODES[mode])), Between(read_and_step), artifacts=tmp_path).play()
    assert play.digest == alone.digest
    assert play.reported("member.differed") == []
