"""What a single member is left with where a group cannot go on without others: it is saved before that one is lost."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import ANY, FaultPlan
from test_cadence import MODES, job, saved
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from waiting import wait_for

from ringleader import Session
from ringleader.elastic import events as ev
from ringleader.elastic.state import Phase
from ringleader.train.local import run_local

torch.set_num_threads(1)
STEPS = 40
LOST_AT = 3
"""Global steps that are committed when the first ones are lost."""
TICKS = 100
"""A stage looks so often whether a checkpoint has come, every 0.05 s, before it ends the last ones anyway."""


class Train:
    """A loop in which nobody goes on from step `LOST_AT` before `lost` is set.

    Args:
        even: the gradient of every weight is 1, whatever the rows and the weights are.

    Attributes:
        here: who has come there.
        ends: a weight at the end of each member.
    """

    def __init__(self, *, even: bool = False) -> None:
        self.lost = threading.Event()
        self.even = even
        self.here: set[str] = set()
        self.ends: list[float] = []

    def __call__(self, session: Session) -> None:
        generator = torch.Generator().manual_seed(0)
        given = torch.randn(STEPS * 16, 5, generator=generator)
        net = session.model(nn.Linear(5, 2))
        for weight in net.parameters():  # the members are threads, which share their generator
            nn.init.constant_(weight, 0.1)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0 if self.even else 0.9))
        for x, y in session.batches(TensorDataset(given, (given.sum(dim=1) > 0).long())):
            if session.global_step >= LOST_AT:
                self.here.add(threading.current_thread().name)
                wait_for("somebody's loss", self.lost.is_set)
            session.step(sum(w.sum() for w in net.parameters()) if self.even else F.cross_entropy(net(x), y))
        self.ends += [value for w in net.parameters() for value in w.flatten().tolist()]


@dataclass
class Deserted(ThreadedCast):
    """When all workers stand behind step `LOST_AT` all but `last` are killed, and nobody comes in their place. When
    these have parked and there is a checkpoint, they are killed as well. In a token ring nobody waits for anybody:
    there it is enough that somebody has committed that step, and tokens are on their way.

    Attributes:
        stood: the newest step that somebody who parked had applied.
    """

    last: tuple[str, ...] = ("w0",)
    killed: set[str] = field(default_factory=set)
    ticks: int = 0
    stood: int = 0

    def _start(self, worker: str, server: bool) -> None:
        if not self.killed:
            super()._start(worker, server)

    def _handle(self, event: ev.Event) -> None:
        if isinstance(event, ev.Parked):
            self.stood = max(self.stood, event.report.step)
        super()._handle(event)
        assert isinstance(self.train, Train)
        if self.spec.sync.circulates:
            self.train.lost.set()
            due = isinstance(event, ev.Committed) and event.step >= LOST_AT
        else:
            due = len(self.train.here) == self.spec.workers.max
        if due and not self.killed:
            self._kill({*self._processes} - {*self.last})
            self.train.lost.set()
        if isinstance(event, ev.Tick) and self._rests():
            self.ticks += 1
            if self._play.checkpoints or self.ticks >= TICKS:
                self._kill({*self.last})

    def _kill(self, names: set[str]) -> None:
        self.killed |= names
        for name in names & {*self._processes}:
            self._processes[name].kill()
            self._tell(
                name, "interrupt", 0
            )  # a thread that waits for a plan notices its end with the next news

    def _rests(self) -> bool:
        members = self._state.members
        alone = bool(self.killed) and {m.id for m in members} == {*self.last} & {*self._processes}
        return alone and all(m.phase is Phase.PARKED for m in members)


LEFT: list[tuple[str, tuple[str, ...]]] = [
    ("ring", ("w0",)),
    ("ring", ("w1",)),
    ("local_sgd", ("w1",)),
    ("servers", ("s0", "s1", "w3")),
    ("servers", ("s0", "s1")),
    ("backups", ("s1", "w2")),
    ("backups", ("s1",)),
    ("copies", ("s0", "w1")),
    ("copies", ("s0",)),
    ("clocks", ("s0", "w2")),
    ("clocks", ("s0",)),
    ("async", ("s0", "w2")),
    ("async", ("s0",)),
    ("token_ring", ("w0",)),
    ("token_ring", ("w1",)),
    ("node groups", ("w1",)),
]


@pytest.mark.parametrize(("mode", "last"), LEFT, ids=[f"{mode}-{'-'.join(last)}" for mode, last in LEFT])
def test_what_too_few_are_left_with_outlives_them(mode: str, last: tuple[str, ...], tmp_path: Path) -> None:
    spec = job(MODES[mode], workers={"min": 2, "max": 2}, checkpoint={"every_steps": None, "every_s": 3600})
    place = tmp_path / "saved"
    first = Deserted(spec, Train(), artifacts=tmp_path / "1", checkpoints=str(place), last=last)
    lost = first.play()
    assert lost.outcome == "failed", lost.message
    assert [plan.cause for plan in lost.plans][-1] == "short"
    assert {*saved(place)} == {first.stood}
    train = Train()
    train.lost.set()
    again = ThreadedCast(spec, train, artifacts=tmp_path / "2", checkpoints=str(place), attempt=2).play()
    assert again.outcome == "succeeded", (again.reason, again.message)
    assert [told["step"] for told in again.reported("checkpoint.restored")] == [first.stood]
    told = {step for step, _ in (*lost.values, *again.values)}
    assert told == set(range(1, STEPS + 1)), "a step that nobody told"
    if spec.sync.same_bits:
        assert again.digest == run_local(spec, train, tmp_path / "3")[0].digest


TOKENS: dict[str, Any] = {
    "token_ring": MODES["token_ring"],
    "node groups": MODES["node groups"],
    "served": {"inter_node": "token_ring", "intra_node": "parameter_server", "servers": 2},
    "pushed": {"inter_node": "parameter_server", "intra_node": "token_ring", "servers": 2},
}


@pytest.mark.parametrize("mode", TOKENS)
def test_no_item_of_a_token_ring_counts_twice_or_not_at_all(mode: str, tmp_path: Path) -> None:
    """Three workers, of whom the last is left: each item's move is one rate times its share of the batch."""
    three = {"workers": {"min": 2, "max": 3}, "batch": {"global_size": 12, "logical_shards": 3}}
    spec = job(TOKENS[mode], **three, checkpoint={"every_steps": None, "every_s": 3600})
    servers = spec.sync.server_count
    kept = [f"s{n}" for n in range(servers)][-1:] if spec.sync.servers_are_copies else ["s0", "s1"][:servers]
    last = (*kept, f"w{servers + 2}")
    train, place = Train(even=True), str(tmp_path / "saved")
    first = Deserted(spec, train, artifacts=tmp_path / "1", checkpoints=place, last=last)
    lost = first.play()
    assert lost.outcome == "failed", lost.message
    assert {*saved(tmp_path / "saved")} == {first.stood}
    again = ThreadedCast(spec, train, artifacts=tmp_path / "2", checkpoints=place, attempt=2).play()
    assert again.outcome == "succeeded", (again.reason, again.message)
    steps = -(-STEPS * 16 // 12)
    assert train.ends == pytest.approx([0.1 - 0.1 * steps] * len(train.ends), abs=1e-4), "float32, 60 updates"


SPARE: list[tuple[str, Any, tuple[str, ...]]] = [
    ("copies", MODES["copies"] | {"servers": 2}, ("s0", "w2", "w3")),
    ("backups", MODES["backups"], ("s1", "w2", "w3")),
    ("served", TOKENS["served"], ("s1", "w2", "w3")),
]


@pytest.mark.parametrize(("mode", "last"), [(m, left) for _, m, left in SPARE], ids=[n for n, _, _ in SPARE])
def test_what_a_single_server_is_left_with_is_saved_behind_the_next_step(
    mode: Any, last: tuple[str, ...], tmp_path: Path
) -> None:
    spec = job(mode, checkpoint={"every_steps": None, "every_s": 3600})
    place = tmp_path / "saved"
    play = Deserted(spec, Train(), artifacts=tmp_path / "1", checkpoints=str(place), last=last).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [plan.cause for plan in play.plans] == ["start", "lost"]
    (step,) = saved(place)
    assert LOST_AT <= step < STEPS
    assert step == LOST_AT + 1 or spec.sync.circulates


@dataclass
class Late(ThreadedCast):
    """Newcomers find a place once those who are left save what they hold."""

    waiting: list[tuple[str, bool]] = field(default_factory=list)

    def _start(self, worker: str, server: bool) -> None:
        self.waiting.append((worker, server))
        self._admit()

    def _handle(self, event: ev.Event) -> None:
        super()._handle(event)
        self._admit()

    def _admit(self) -> None:
        if not self.formed or self.formed[-1].cause == "short":
            for worker, server in self.waiting:
                super()._start(worker, server)
            self.waiting.clear()


@pytest.mark.parametrize("mode", ["ring", "servers", "copies", "local_sgd", "token_ring"])
def test_who_saves_goes_on_with_others_as_soon_as_they_are_enough(mode: str, tmp_path: Path) -> None:
    spec = job(MODES[mode], workers={"min": 2, "max": 2}, checkpoint={"every_steps": None, "every_s": 3600})
    train = Train()
    train.lost.set()
    first = 2 if mode == "servers" else 1 if mode == "copies" else 0
    faults = FaultPlan().kill(f"w{first}", at_step=ANY, past=LOST_AT)
    play = Late(spec, train, faults, tmp_path / "1", checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [plan.cause for plan in play.plans] == ["start", "short", "join"]
    assert sorted(step for step, _ in play.values) == list(range(1, STEPS + 1))
    if spec.sync.same_bits:
        assert play.digest == run_local(spec, train, tmp_path / "3")[0].digest
