"""How far workers that lease items may be apart: strict clocks have a synchronous server's bits, others their bound."""

import copy
import random
import threading
from pathlib import Path

import pytest
import torch
from faults import FaultPlan
from leasing import (
    ASYNC,
    BACKUP,
    BATCH,
    DATA,
    ITEMS,
    LR,
    NET,
    OPTIMIZERS,
    ROWS,
    SHARDS,
    STEPS_AN_EPOCH,
    STRICT,
    Counts,
    Numbers,
    job,
    learn,
)
from threaded_cast import Shot, ThreadedCast
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.modes.async_server.lease_queue import ItemLease, LeaseQueue
from ringleader.train.modes.async_server.messages import ANSWER, ASK, PUSH, RECEIPT


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ssp_without_staleness_has_the_bits_of_synchronous_servers(kind, clip_norm, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        learn(session, kind, clip_norm)

    in_step, values = run_local(job({}), train, tmp_path / "alone")
    play = ThreadedCast(job(STRICT), train, artifacts=tmp_path / "cast").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == in_step.digest
    for step, said in play.values:
        assert said["loss"] == pytest.approx(values.values[step]["loss"], abs=1e-6)  # summed in another order
        assert said.get("accuracy") == values.values[step].get("accuracy")
    assert {f.reproducible for f in play.finished.values()} == {True}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_costs_ssp_without_staleness_no_bit(servers: int, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    tag, sends = chance.choice(((PUSH, True), (RECEIPT, False), (ASK, True), (ANSWER, False)))
    shot = Shot(f"w{servers}", chance.randrange(servers), tag, chance.randrange(12), sends)
    print(f"seed {seed}: {shot}")
    alone, _ = run_local(job({}), learn, tmp_path / "alone")
    spec = job(STRICT | {"servers": servers})
    play = ThreadedCast(spec, learn, artifacts=tmp_path / "cast", shots=(shot,)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest


@pytest.mark.parametrize("nth", [6, 8, 10])
def test_a_clock_that_one_server_has_whole_waits_for_server_0(nth: int, tmp_path: Path) -> None:
    """One worker dies in its third, fourth or fifth push: the other server may have all four gradients of a clock."""
    alone, _ = run_local(job({}), learn, tmp_path / "alone")
    spec = job(STRICT | {"servers": 2}, workers={"min": 1, "max": 1})
    play = ThreadedCast(spec, learn, artifacts=tmp_path / "cast", shots=(Shot("w2", 0, PUSH, nth),)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == ["w2"]
    assert play.digest == alone.digest


@pytest.mark.parametrize("servers", [1, 2])
def test_a_lost_server_costs_an_attempt_which_goes_on_inside_the_loop(servers: int, tmp_path: Path) -> None:
    """A loop has five steps; the newest checkpoint is the fourth's."""
    alone, _ = run_local(job({}), learn, tmp_path / "alone")
    spec = job(STRICT | {"servers": servers}, checkpoint={"every_steps": 4})
    place = str(tmp_path / "checkpoints")
    faults = FaultPlan().kill("s0", at_step=7, phase="committed", once=tmp_path / "checkpoints")
    first = ThreadedCast(spec, learn, faults, tmp_path / "cast", checkpoints=place).play()
    assert first.outcome == "failed"
    second = ThreadedCast(spec, learn, artifacts=tmp_path / "cast", checkpoints=place, attempt=2).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [4]
    assert second.digest == alone.digest


@pytest.mark.parametrize(("mode", "steps"), [(ASYNC, STEPS_AN_EPOCH - 1), (BACKUP, STEPS_AN_EPOCH)])
def test_a_straggler_holds_nobody_up(mode, steps: int, tmp_path: Path) -> None:
    """The first worker stays in its first turn until the others have made every step that they can: with a backup all,
    because what they were quicker than is theirs; with `async` all that its item is no part of."""
    begun, ahead, order = threading.Event(), threading.Event(), []

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        me = threading.current_thread().name

        def note() -> None:
            if me == "s0":
                order.append(("step", session.global_step))
                if session.global_step == steps:
                    ahead.set()

        session.on_commit(note)
        for turn, rows in enumerate(session.batches(Numbers(), shuffle=False)):
            if me == "w1" and turn == 0:
                begun.set()
                assert ahead.wait(30), f"the others waited for a straggler: {order}"
                order.append(("late", 0))
            assert begun.wait(30), "the straggler got no item"
            session.step(net(rows).mean())

    play = ThreadedCast(job(mode), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert order[: steps + 1] == [*(("step", step) for step in range(1, steps + 1)), ("late", 0)]
    assert [step for step, _ in play.values] == list(range(1, STEPS_AN_EPOCH + 1))
    assert sorted(row for _, _, row in play.settled_rows()) == list(range(ROWS))
    (staleness,) = {tuple(f.staleness) for f in play.finished.values()}
    assert sum(staleness) == ITEMS
    assert mode is ASYNC or staleness[0] == ITEMS, "an update is made of gradients of its own version"


@pytest.mark.parametrize("staleness", [1, 2])
def test_ssp_goes_on_up_to_its_bound_and_no_further(staleness: int, tmp_path: Path) -> None:
    """The straggler holds an item of clock 0 until the others have computed all that they may."""
    seen: list[int] = []
    begun, enough = threading.Event(), threading.Event()
    allowed = (staleness + 1) * SHARDS - 1

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        me = threading.current_thread().name
        for rows in session.batches(Numbers(), shuffle=False):
            if me == "w1":
                begun.set()
                assert enough.wait(30), f"the others made {len(seen)} of {allowed} items"
            else:
                assert begun.wait(30), "the straggler got no item"
                seen.append(int(rows.min()) // BATCH)
                if len(seen) == allowed:
                    enough.set()
            session.step(net(rows).mean())

    play = ThreadedCast(job({"consistency": "ssp", "staleness": staleness}), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert max(seen[:allowed]) == staleness
    assert max(values["staleness_max"] for _, values in play.values) == staleness
    (counted,) = {tuple(f.staleness) for f in play.finished.values()}
    assert sum(counted) == ITEMS
    assert counted[staleness] >= SHARDS, "a whole batch was computed on the first weights"
    assert not any(counted[staleness + 1 :])


@pytest.mark.parametrize("servers", [1, 2])
def test_without_staleness_no_step_is_made_before_all_workers_have_seen_the_one_before(
    servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third worker has no slice of the last batch but one, and computes the last batch, which is one slice, before
    the others leave the loop. What is called once a step finds the weights of that step."""
    left_at, idle, begun = 3, 2, threading.Event()
    seen: dict[str, list[float]] = {}
    few = TensorDataset(*(part[: left_at * SHARDS + 1] for part in DATA.tensors))

    def train(session: Session) -> None:
        mine = seen[threading.current_thread().name] = []
        net = session.model(copy.deepcopy(NET))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
        weight = net.layers[0].weight
        session.on_commit(lambda: mine.append(float(weight.detach().double().sum())))
        for x, y in session.batches(few):
            if session.global_step == left_at:
                begun.set()
            session.step(F.cross_entropy(net(torch.cat([x, -x])), torch.cat([y, 1 - y])))
            if session.global_step == left_at:
                assert begun.wait(30), "nobody has the last batch"
                break

    lease = LeaseQueue.lease

    def to_whom(self: LeaseQueue, worker: int) -> ItemLease | None:
        batch = left_at if self.next is None else self.next // SHARDS
        others = {left_at: {idle}, left_at - 1: {0, 1}}.get(batch, {0, 1, 2})
        return lease(self, worker) if worker in others else None

    begun.set()
    size = {"global_size": SHARDS, "logical_shards": SHARDS}
    alone, _ = run_local(job({}, batch=size), train, tmp_path / "alone")
    (expected,) = seen.values()
    begun.clear()
    monkeypatch.setattr(LeaseQueue, "lease", to_whom)
    spec = job(STRICT | {"servers": servers}, batch=size, workers={"min": 3, "max": 3})
    play = ThreadedCast(spec, train, artifacts=tmp_path / "cast").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, left_at + 1))
    assert play.digest == alone.digest
    assert len(expected) == left_at
    assert all(seen[name] == expected for name in play.finished if name.startswith("w"))
