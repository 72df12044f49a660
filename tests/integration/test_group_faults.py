"""A group of real processes: whatever happens to its members, the same bits, every step and every row once."""

import multiprocessing as mp
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cast import Cast
from faults import FaultPlan
from play import Play
from prompter import await_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.errors import ExchangeBroken
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

TWO = {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2}
ROWS, BATCH, EPOCHS = 150, 32, 3
STEPS = EPOCHS * 5
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.02),
}
ADAM: dict[str, Any] = {"params": {"optimizer": "adam"}}


class Ema:
    """A kept object that the loop body touches, to see that a replay rolls it back."""

    def __init__(self) -> None:
        self.turns = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"turns": self.turns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turns = state["turns"]


class Jittered(TensorDataset):
    """Draws from every global stream when a row is read."""

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(row)
        return x + 0.05 * (torch.randn(6) + float(np.random.standard_normal()) + random.gauss()), y


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator)
    return Jittered(x, (x[:, 0] * x[:, 1] > 0).long())


def train(session: Session) -> None:
    """Dropout, BatchNorm, clipping, momentum or Adam, a schedule, a kept object, a short last batch, rows with their
    own randomness, evaluations."""
    run_epochs(session, register(session))


def register(session: Session, before_update: Callable[..., None] = lambda *_: None) -> nn.Module:
    net = session.model(
        nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    )
    make = OPTIMIZERS[str(session.params.get("optimizer", "momentum"))]
    optimizer = session.optimizer(make(net.parameters()), clip_norm=0.5)
    optimizer.register_step_pre_hook(before_update)
    session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7))
    session.keep("ema", Ema())
    return net


def run_epochs(session: Session, net: nn.Module, data: Any = None) -> None:
    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    data = data or rows()
    for _ in range(EPOCHS):
        for x, y in session.batches(data):
            loss = F.cross_entropy(net(x), y)
            session.step(loss, mean_x=x.mean())
        session.evaluate(data, score)


def job(**changes: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "group",
        "entrypoint": "group:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": BATCH, "logical_shards": 4},
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


class Centred(nn.Module):
    """Replaces its buffers in every forward, in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return x - self.mean


def train_centred(session: Session) -> None:
    net = session.model(nn.Sequential(Centred(), nn.Linear(6, 2)))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    run_epochs(session, net)


def test_buffers_that_a_forward_replaces_end_equal_on_all_members_and_as_in_one_process(tmp_path: Path):
    alone, _ = run_local(job(), train_centred, tmp_path / "alone")
    play = Cast(job(), train_centred, FaultPlan().kill("w1", at_step=7), tmp_path / "cast").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest


def alone(folder: Path, **changes: Any) -> str:
    """The digest of one process that computes every shard itself."""
    torch.set_num_threads(1)
    finished, _ = run_local(job(**changes), train, folder)
    assert finished.steps == STEPS
    return finished.digest


@pytest.fixture(scope="module")
def undisturbed_with(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: alone(folder, params={"optimizer": name}) for name in OPTIMIZERS}


@pytest.fixture(scope="module")
def undisturbed(undisturbed_with: dict[str, str]) -> str:
    return undisturbed_with["momentum"]


def check(play: Play, digest: str) -> None:
    """The promises that hold whatever happened."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == digest
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    settled = play.settled_rows()
    assert [s for s, _, _ in play.rows] == list(range(1, STEPS + 1))
    for epoch in range(EPOCHS):
        of_epoch = [row for step, _, row in settled if epoch * 5 < step <= (epoch + 1) * 5]
        assert sorted(of_epoch) == list(range(ROWS))
    evaluated = {step for step, values in play.values if "accuracy" in values}
    assert evaluated == {5, 10, 15}


def test_an_undisturbed_group_has_the_bits_of_one_process(undisturbed: str, tmp_path: Path) -> None:
    play = Cast(job(), train, artifacts=tmp_path).play()
    check(play, undisturbed)
    assert play.worlds == [3]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_have_the_bits_of_the_ring(undisturbed: str, tmp_path: Path, servers: int) -> None:
    play = Cast(job(sync=TWO | {"servers": servers}), train, artifacts=tmp_path).play()
    check(play, undisturbed)
    assert play.plans[0].servers == servers


@pytest.mark.parametrize(
    ("victim", "phase", "optimizer"),
    [
        ("w2", "forward", "momentum"),
        ("w0", "exchange", "momentum"),
        ("w0", "exchange", "adam"),
        ("w0", "committed", "momentum"),
    ],
)
def test_a_killed_worker_costs_no_bit(
    undisturbed_with: dict[str, str], tmp_path: Path, victim: str, phase: str, optimizer: str
) -> None:
    spec, faults = job(params={"optimizer": optimizer}), FaultPlan().kill(victim, at_step=7, phase=phase)
    play = Cast(spec, train, faults, tmp_path).play()
    check(play, undisturbed_with[optimizer])
    assert play.worlds[:2] == [3, 2]
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


def test_a_kill_during_an_evaluation_costs_no_bit(undisturbed: str, tmp_path: Path) -> None:
    play = Cast(job(), train, FaultPlan().kill("w1", at_step=10, phase="evaluate"), tmp_path).play()
    check(play, undisturbed)


def test_two_killed_at_once_cost_no_bit(undisturbed: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w0", at_step=6).kill("w1", at_step=6, phase="exchange")
    check(Cast(job(), train, faults, tmp_path).play(), undisturbed)


def test_a_kill_during_a_recovery_costs_no_bit(undisturbed: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w0", at_step=6).kill("w2", at_step=6, phase="parked")
    check(Cast(job(), train, faults, tmp_path).play(), undisturbed)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sync", ["ring", TWO], ids=["ring", "two-servers"])
def test_resizes_up_and_down_cost_no_bit(
    undisturbed_with: dict[str, str], sync: Any, optimizer: str, tmp_path: Path
) -> None:
    first = "w0" if sync == "ring" else "w2"
    faults = (
        FaultPlan()
        .resize(at_step=2, workers_min=4, workers_max=4)
        .hold(first, at_step=4, for_generation=2)
        .resize(at_step=7, workers_min=2, workers_max=2)
        .hold(first, at_step=9, for_generation=3)
        .resize(at_step=11, workers_min=3, workers_max=3)
        .hold(first, at_step=13, for_generation=4)
    )
    spec = job(workers={"min": 1, "max": 1}, sync=sync, params={"optimizer": optimizer})
    play = Cast(spec, train, faults, tmp_path).play()
    check(play, undisturbed_with[optimizer])
    assert play.worlds == [1, 4, 2, 3]
    assert not play.reported("worker.lost")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_replacement_joins_healed_and_repeats_no_row(
    undisturbed_with: dict[str, str], optimizer: str, tmp_path: Path
) -> None:
    faults = FaultPlan().kill("w1", at_step=3).hold("w0", at_step=8, for_generation=3)
    play = Cast(job(params={"optimizer": optimizer}), train, faults, tmp_path).play()
    check(play, undisturbed_with[optimizer])
    assert play.worlds == [3, 2, 3]
    assert "w3" in play.plans[-1].members


def test_a_killed_worker_of_a_server_group_costs_no_bit(undisturbed: str, tmp_path: Path) -> None:
    spec = job(sync="parameter_server")
    play = Cast(spec, train, FaultPlan().kill("w1", at_step=7, phase="exchange"), tmp_path).play()
    check(play, undisturbed)


@pytest.mark.parametrize(("victim", "phase"), [("w2", "exchange"), ("w4", "committed")])
def test_a_killed_worker_costs_two_servers_no_bit(
    undisturbed: str, tmp_path: Path, victim: str, phase: str
) -> None:
    play = Cast(job(sync=TWO), train, FaultPlan().kill(victim, at_step=7, phase=phase), tmp_path).play()
    check(play, undisturbed)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


def stumbling(session: Session, steps: Path) -> None:
    """Server s1 breaks in its eighth update: once after s0 has made it, once more in the repeated step."""
    falls = [True, False]

    def stumble(*_: Any) -> None:
        if mp.current_process().name == "s1" and session.global_step == 7 and falls:
            if falls.pop(0):
                await_file(steps / "s0-8")
            raise ExchangeBroken(rank=1, phase="update", bucket=None, why="this test says so")

    noting(session, steps, stumble)


def noting(session: Session, steps: Path, before_update: Callable[..., None] = lambda *_: None) -> None:
    """Every server leaves a file for every step that it has applied, before it publishes."""
    net = register(session, before_update)

    def note(*_: Any) -> None:
        (steps / f"{mp.current_process().name}-{session.global_step + 1}").touch()

    session._held.optimizers[-1][0].register_step_post_hook(note)
    run_epochs(session, net)


def test_a_server_that_is_ahead_repeats_the_step_without_a_second_update(
    undisturbed: str, tmp_path: Path
) -> None:
    play = Cast(job(sync=TWO), partial(stumbling, steps=tmp_path), artifacts=tmp_path / "out").play()
    check(play, undisturbed)
    assert play.worlds == [3, 3, 3]
    first, second, _ = play.plans
    assert (
        second.start_transaction == first.start_transaction + 7 + 1
    )  # seven steps and the evaluation after the fifth
    assert ("s0", "s1") in second.heals


def test_weights_that_two_servers_made_and_nobody_received_are_not_lost(
    undisturbed: str, tmp_path: Path
) -> None:
    faults = FaultPlan().stumble("s1", at_step=8, phase="committed", once=tmp_path / "s0-8")
    play = Cast(job(sync=TWO), partial(noting, steps=tmp_path), faults, tmp_path / "out").play()
    check(play, undisturbed)
    _, second = play.plans
    assert sorted(receiver for receiver, _ in second.heals) == ["w2", "w3", "w4"]


def test_workers_that_join_two_servers_are_healed(undisturbed: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w2", at_step=3).hold("w3", at_step=8, for_generation=3)
    play = Cast(job(sync=TWO), train, faults, tmp_path).play()
    check(play, undisturbed)
    assert play.worlds == [3, 2, 3]


def branching(session: Session) -> None:
    """Evaluates only where global_step and loss say so: a joiner has to take the same branches."""
    net = session.model(nn.Linear(6, 2))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    data = rows()
    for _ in range(EPOCHS):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
        if session.global_step == 5 and session.loss is not None and session.loss < 100:
            session.evaluate(data, lambda batch: {"accuracy": (net(batch[0]).argmax(1) == batch[1]).float()})


def test_a_joiner_takes_the_branches_that_the_others_took(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone, _ = run_local(job(), branching, tmp_path)
    faults = FaultPlan().kill("w1", at_step=6).hold("w0", at_step=8, for_generation=3)
    play = Cast(job(), branching, faults, tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.worlds == [3, 2, 3]
    assert play.digest == alone.digest


def astray(session: Session) -> None:
    """One worker evaluates where the others go on with a loop."""
    net = session.model(nn.Linear(6, 2))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    data, mine = rows(), []
    for x, y in session.batches(data):
        mine.append(len(x))
        session.step(F.cross_entropy(net(x), y))
    if len(mine) > 5:
        session.evaluate(data, lambda batch: {"accuracy": (net(batch[0]).argmax(1) == batch[1]).float()})
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("sync", ["ring", "parameter_server"])
def test_members_at_different_calls_fail_the_job_naming_both_ranks(tmp_path: Path, sync: str) -> None:
    # Four shards over three workers: only the last one owns two, so its body runs ten times in five steps.
    play = Cast(job(sync=sync), astray, artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "rank 2 " in play.message
    assert "call 1 (evaluate)" in play.message
    assert "call 1 (batches, epoch 1)" in play.message


def left_early(session: Session) -> None:
    """Leaves each loop, one behind a step, one before."""
    net = session.model(nn.Linear(6, 2))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    data = rows()
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))
        if session.global_step >= 3:
            break
    session.evaluate(data, lambda batch: {"accuracy": (net(batch[0]).argmax(1) == batch[1]).float()})
    for x, y in session.batches(data):
        if session.global_step >= 5:
            break
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("sync", ["ring", {"intra_node": "parameter_server", "servers": 2}], ids=str)
def test_a_loop_left_by_break_in_shared_memory_costs_no_bit_with_a_kill(tmp_path: Path, sync: Any) -> None:
    torch.set_num_threads(1)
    words = sync if isinstance(sync, str) else sync | {"inter_node": "parameter_server"}
    alone, _ = run_local(job(), left_early, tmp_path / "alone")
    victim = "w1" if sync == "ring" else "w3"
    faults = FaultPlan().kill(victim, at_step=3, phase="exchange")
    play = Cast(job(sync=words), left_early, faults, tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert (alone.steps, play.digest) == (5, alone.digest)
    assert len(play.plans) > 1
