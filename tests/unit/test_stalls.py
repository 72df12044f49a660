"""The program hangs in one member: that one is evicted, whoever waits for it stays, and no step is lost."""

import copy
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from prompter import HANG_GUARD_S
from test_server_backups import DATA, EPOCHS, NET, STEPS_AN_EPOCH, check, lost
from test_server_backups import job as backed
from test_worker_phases import job
from threaded_cast import ThreadedCast, ThreadPrompter
from torch.nn import functional as F

from ringleader.elastic import events as ev
from ringleader.runtime.supervisor.failure_detector import Eviction, FailureDetector
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

STALL_S, TICK_S = 5.0, 0.5


class Program:
    """A training function that hangs at `place` in `victim` behind step `behind`, until it is released."""

    def __init__(self, victim: str = "", place: str = "", *, behind: int = 3, epochs: int = EPOCHS) -> None:
        self.victim = victim
        self._place = place
        self._behind = behind
        self._epochs = epochs
        self.hangs = threading.Event()
        self.released = threading.Event()

    def __call__(self, session: Session) -> None:
        net = session.model(copy.deepcopy(NET))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), clip_norm=0.05)
        optimizer.register_step_pre_hook(lambda *_: self._at("optimizer", session))
        session.on_commit(lambda: self._at("callback", session))
        for _ in range(self._epochs):
            for x, y in session.batches(DATA):
                session.step(F.cross_entropy(net(x), y))
                self._at("behind the step", session)

    def _at(self, place: str, session: Session) -> None:
        here = (threading.current_thread().name, place) == (self.victim, self._place)
        if here and session.global_step >= self._behind and not self.hangs.is_set():
            self.hangs.set()
            assert self.released.wait(HANG_GUARD_S)


class Watched(ThreadedCast):
    """The stage under the supervisor's watch, whose clock stands still until somebody hangs and all others wait."""

    def watch(self, program: Program) -> None:
        self.program = program
        self.watching = FailureDetector(STALL_S)
        self.told: dict[str, dict[str, Any]] = {}
        self.phases: dict[str, list[str]] = {}
        self.verdicts: list[Eviction] = []

    def heard(self, worker: str, generation: int, phase: str, step: int) -> None:
        moves = self.told.get(worker, {"moves": 0})["moves"] + 1
        self.told[worker] = {"generation": generation, "moves": moves, "phase": phase, "step": step}
        self.phases.setdefault(worker, []).append(phase)
        self.watching.beat(worker, **self.told[worker], now=0.0)

    def _listen(self) -> None:
        super()._listen()
        told = dict(self.told)
        others = {w: said["phase"] for w, said in told.items() if w != self.program.victim}
        wait = all(
            phase == "exchange" or (w[0] == "s" and phase == "committed") for w, phase in others.items()
        )
        if self.program.hangs.is_set() and not self.verdicts and wait:  # a server may wait while it publishes
            self._judge(told)

    def _judge(self, told: dict[str, dict[str, Any]]) -> None:
        now = 0.0
        while not self.verdicts and now < 3 * STALL_S:
            now += TICK_S
            for worker, said in told.items():
                self.watching.beat(worker, **said, now=now)
            self.verdicts = self.watching.verdicts(now)
        for verdict in self.verdicts:
            self._handle(ev.Evict(verdict.worker, verdict.cause, time.monotonic()))
        self.program.released.set()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_local(job(), Program(), tmp_path_factory.mktemp("alone"))[0].digest


SERVED = ["forward", "exchange", "update", "exchange", "update", "committed", "between"]
SERVER = {"intra_node": "parameter_server", "inter_node": "parameter_server"}
TWO: dict[str, Any] = {"workers": {"min": 1, "max": 2}}
CASES: dict[str, tuple[JobSpec, str, str]] = {
    "ring, optimizer": (job(**TWO), "w0", "optimizer"),
    "ring, callback": (job(**TWO), "w0", "callback"),
    "ring, behind the step": (job(**TWO), "w1", "behind the step"),
    "servers, callback": (job(sync=SERVER, **TWO), "w1", "callback"),
    "servers, behind the step": (job(sync=SERVER, **TWO), "w2", "behind the step"),
    "servers, optimizer": (backed(3), "s0", "optimizer"),
    "local_sgd, callback": (job(sync="local_sgd", **TWO), "w0", "callback"),
}


@pytest.mark.parametrize("case", CASES)
def test_who_hangs_in_the_programs_own_code_is_evicted_and_nobody_who_waits_for_it(
    case: str, alone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, victim, place = CASES[case]
    rounds = (
        "local_sgd" in case
    )  # of an epoch; a generation's first transaction has no deadline, so hang in the second
    program = (
        Program(victim, place, behind=STEPS_AN_EPOCH + 1, epochs=3) if rounds else Program(victim, place)
    )
    stage = Watched(spec, program, artifacts=tmp_path)
    stage.watch(program)
    progress = ThreadPrompter.progress

    def note(self: ThreadPrompter, *, step: int, phase: str, **rest: Any) -> None:
        progress(self, step=step, phase=phase, **rest)
        stage.heard(self._me, self._generation, phase, step)

    monkeypatch.setattr(ThreadPrompter, "progress", note)
    done = stage.play()
    assert [(verdict.worker, verdict.cause) for verdict in stage.verdicts] == [(victim, "stalled")]
    assert lost(done) == [victim]
    if rounds:  # other bits
        steps = [*range(1, 3 * STEPS_AN_EPOCH + 1)]
        assert (done.outcome, [step for step, _ in done.values]) == ("succeeded", steps)
    else:
        check(done, alone)
    if victim == "s0":  # in the norm of all gradients servers wait for each other
        assert stage.phases["s1"][: len(SERVED)] == SERVED
