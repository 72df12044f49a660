"""Loops over leased items that end early, and workers that are elsewhere than the others."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from leasing import (
    ASYNC,
    BACKUP,
    BATCH,
    LR,
    ROWS,
    SSP,
    STEPS,
    STEPS_AN_EPOCH,
    STRICT,
    Counts,
    Leaving,
    Numbers,
    expected,
    job,
    name_of,
)
from threaded_cast import Shot, ThreadedCast, ThreadPrompter

from ringleader.runtime.supervisor.failure_detector import WORKING
from ringleader.train import Session
from ringleader.train.modes.async_server.messages import PUSH, PullReply, RequestKind
from ringleader.train.modes.async_server.worker.client import ServerClient


@pytest.mark.parametrize("mode", [ASYNC, ASYNC | {"servers": 2}, SSP, STRICT, BACKUP], ids=name_of)
@pytest.mark.parametrize("way", ["stop", "break"])
def test_one_worker_ends_the_loop_for_all(mode, way: str, tmp_path: Path) -> None:
    """The rows of the steps that were made are those in the weights; the next loop takes every row."""
    nets = Leaving(way, 2 * BATCH)
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    weights = expected(play, mode)
    for name in play.finished:
        for vector in nets.made[name].vectors:
            assert torch.allclose(
                vector.detach().double(), weights, atol=1e-6
            )  # sums over 13 rows are rounded
    rows = [row for step, _, row in play.settled_rows() if step > len(play.values) - STEPS_AN_EPOCH]
    assert sorted(rows) == list(range(ROWS))
    assert len(play.values) < STEPS


def test_a_worker_that_left_a_loop_waits_in_a_phase_that_has_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a loop that one worker leaves, and of pushes on their way: what the training thread said last. The others hold
    what they got of the second batch, and with it its end, until that worker has got an item of it too."""
    leaves = threading.Event()
    said: dict[str, str] = {}
    waits: list[tuple[str, str]] = []
    progress, ask, pushed = ThreadPrompter.progress, ServerClient.ask, ServerClient.pushed

    def note(self: ThreadPrompter, **news: Any) -> None:
        said[threading.current_thread().name] = news["phase"]
        progress(self, **news)

    def asks(self: ServerClient, wish: RequestKind, stop: int = -1) -> PullReply:
        waits.append((wish.name, said[threading.current_thread().name]))
        return ask(self, wish, stop)

    def waits_for_push(self: ServerClient) -> None:
        if self._pushing is not None:
            waits.append(("push", said[threading.current_thread().name]))
        pushed(self)

    monkeypatch.setattr(ThreadPrompter, "progress", note)
    monkeypatch.setattr(ServerClient, "ask", asks)
    monkeypatch.setattr(ServerClient, "pushed", waits_for_push)

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if int(rows.max()) >= BATCH and threading.current_thread().name == "w1":
                leaves.set()
                break
            assert int(rows.max()) < BATCH or leaves.wait(30), "w1 got no item of the second batch"
            session.step(net(rows).mean())

    play = ThreadedCast(job(ASYNC), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert "BREAK" in {wish for wish, _ in waits}
    assert not {phase for _, phase in waits} & WORKING


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("way", ["stop", "break"])
def test_what_one_server_got_before_a_kill_ended_the_loop_is_applied_nowhere(
    way, servers, tmp_path: Path
) -> None:
    """The one worker dies between two servers; the other, with an item in hand, then ends the loop."""
    nets: dict[str, Counts] = {}
    dead = threading.Event()
    victim = f"w{servers}"

    def train(session: Session) -> None:
        me = threading.current_thread().name
        net = nets[me] = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if me != victim:
                assert dead.wait(30), f"nobody killed {victim}"
                if way == "break":
                    break
                session.stop()
            session.step(net(rows).mean())
        for rows in session.batches(Numbers(), shuffle=False):
            session.step(net(rows).mean())

    spec = job(ASYNC | {"servers": servers}, workers={"min": 1, "max": 2})
    shots = (Shot(victim, 0, PUSH, 0),)
    play = ThreadedCast(spec, train, artifacts=tmp_path, shots=shots, fired=dead).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    weights = expected(play, ASYNC)
    for name in play.finished:
        for vector in nets[name].vectors:
            assert torch.equal(vector.detach().double(), weights)


def test_members_at_different_calls_fail_the_job_naming_both(tmp_path: Path) -> None:
    def astray(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers()):
            session.step(net(rows).mean())
        if threading.current_thread().name == "w1":
            session.evaluate(Numbers(), lambda rows: {"row": rows.float()})
        for rows in session.batches(Numbers()):
            session.step(net(rows).mean())

    play = ThreadedCast(job(ASYNC), astray, artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "call 1 (evaluate)" in play.message
    assert "call 1 (batches, epoch 1)" in play.message
