"""A loop that is left by `break` ends at the same step for all, servers and joiners too."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from undisturbed import undisturbed

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
LEFT_AT, STEPS = 4, 6

RING = {"intra_node": "ring"}
SERVER = {"intra_node": "parameter_server"}
SERVERS = SERVER | {"servers": 2}
COPIES = {"inter_node": "ring", "intra_node": "parameter_server", "servers": 2}
ROUNDS = {"intra_node": "local_sgd", "inner_steps": 2}
MERGED = {"intra_node": "ring", "reproducible": False}
IN_STEP = {"ring": RING, "server": SERVER, "servers": SERVERS, "copies": COPIES, "local_sgd": ROUNDS}
LEASED = SERVER | {"consistency": "ssp"}
"""Who computes which slice is up to the clock; at which step a loop ends is not."""
EXACT = IN_STEP | {"leased": LEASED}


def job(sync: dict[str, Any], **changes: Any) -> JobSpec:
    both = {"inter_node": sync["intra_node"]} | sync
    base: dict[str, Any] = {
        "name": "leaving",
        "entrypoint": "leaving:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": 12, "logical_shards": 4},
        "sync": both,
    }
    return JobSpec.parse(base | changes)


def worker(sync: dict[str, Any], number: int) -> str:
    """The name of a worker: servers count before them."""
    servers = sync.get("servers", 1) if sync["intra_node"] == "parameter_server" else 0
    return f"w{servers + number}"


def rows() -> TensorDataset:
    numbers = torch.arange(72 * 5, dtype=torch.float32).reshape(72, 5)
    return TensorDataset((numbers * 7 % 11) / 11, torch.arange(72) % 3)


def made(session: Session, clip_norm: float | None = 1.0) -> nn.Module:
    """A net without a random number: all members are threads of one process."""
    net = nn.Sequential(
        nn.utils.skip_init(nn.Linear, 5, 8), nn.BatchNorm1d(8), nn.utils.skip_init(nn.Linear, 8, 3)
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape).remainder(5) / 5 - 0.3)
    session.model(net)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), clip_norm=clip_norm)
    return net


def train(session: Session) -> None:
    """Leaves the first loop behind a step and the second before one, and evaluates after both."""
    net, data = made(session), rows()

    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))
        if session.global_step >= LEFT_AT:
            break
    session.evaluate(data, score)
    for x, y in session.batches(data):
        if session.global_step >= STEPS:
            break
        session.step(F.cross_entropy(net(x), y))
    session.evaluate(data, score)


def check(play: Play, sync: dict[str, Any]) -> None:
    alone, _ = undisturbed(job(SERVER if sync is LEASED else sync), train)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert alone.steps == STEPS
    assert play.digest == alone.digest
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert {step for step, values in play.values if "accuracy" in values} == {LEFT_AT, STEPS}


@pytest.mark.parametrize("sync", EXACT.values(), ids=EXACT)
def test_a_loop_left_by_break_ends_for_all_at_that_step(sync: dict[str, Any], tmp_path: Path) -> None:
    play = ThreadedCast(job(sync), train, artifacts=tmp_path).play()
    check(play, sync)
    assert play.worlds == [3]


@pytest.mark.parametrize("phase", ["forward", "exchange", "committed"])
@pytest.mark.parametrize("sync", EXACT.values(), ids=EXACT)
def test_a_kill_near_the_break_costs_no_bit(sync: dict[str, Any], phase: str, tmp_path: Path) -> None:
    # At the step of the break `exchange` is the agreement to leave, and `forward` the second loop's first slice.
    faults = FaultPlan().kill(worker(sync, 1), at_step=LEFT_AT, phase=phase)
    play = ThreadedCast(job(sync), train, faults, artifacts=tmp_path).play()
    check(play, sync)
    assert len(play.plans) > 1


@pytest.mark.parametrize("sync", EXACT.values(), ids=EXACT)
def test_who_joins_at_the_step_of_the_break_leaves_with_the_others(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    # The plan that lets the third worker in is known before the last step of the loop, and so begins behind it.
    last = LEFT_AT - sync.get("inner_steps", 1)
    faults = FaultPlan().resize(at_step=last, workers_min=1, workers_max=3)
    faults = faults.hold(worker(sync, 0), at_step=last, for_generation=2, phase="exchange")
    spec = job(sync, workers={"min": 1, "max": 2})
    play = ThreadedCast(spec, train, faults, artifacts=tmp_path).play()
    check(play, sync)
    assert play.worlds == [2, 3]
    (joined,) = [one for one in play.reported("worker.joined") if one["step"] > 0]
    # Where items are leased a generation also ends in the middle of a batch, which is then computed again.
    assert joined["step"] in ([last, LEFT_AT] if sync is LEASED else [LEFT_AT])


def test_workers_that_run_their_slices_as_one_leave_together(tmp_path: Path) -> None:
    play = ThreadedCast(job(MERGED), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))


def leaves_alone(name: str) -> Callable[[Session], None]:
    def train(session: Session) -> None:
        net, data = made(session), rows()
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
            if session.global_step == LEFT_AT and threading.current_thread().name == name:
                break
        session.evaluate(data, lambda batch: {"accuracy": net(batch[0]).argmax(dim=1) == batch[1]})

    return train


@pytest.mark.parametrize("sync", IN_STEP.values(), ids=IN_STEP)
def test_a_worker_that_leaves_alone_is_named_with_its_step(sync: dict[str, Any], tmp_path: Path) -> None:
    name = worker(sync, 2)
    play = ThreadedCast(job(sync), leaves_alone(name), artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert f"rank 2 ({name}) left the loop of session call 0 (batches, epoch 0) by break" in play.message
    assert (
        f"after step {LEFT_AT}; rank 0 ({worker(sync, 0)}) continues with step {LEFT_AT + 1}." in play.message
    )


def stopping(session: Session) -> None:
    """Asks for the end behind every slice from the first committed step on, so also in the middle of a batch."""
    net, data = made(session), rows()
    for _ in range(2):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
            if session.global_step >= 1:
                session.stop()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("sync", [sync for sync in EXACT.values() if sync is not ROUNDS])
def test_a_stop_behind_a_slice_ends_the_loop_at_the_same_step_in_any_world(
    sync: dict[str, Any], world: int, tmp_path: Path
) -> None:
    """Four slices a batch: one worker is between two of them where four are behind the last."""
    spec = job(sync, workers={"min": 1, "max": world})
    play = ThreadedCast(spec, stopping, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    alone, _ = run_local(job(SERVER if sync is LEASED else sync), stopping, tmp_path / "alone")
    assert [step for step, _ in play.values] == [1, 2, 3, 4]
    assert (play.digest, alone.steps) == (alone.digest, 4)
