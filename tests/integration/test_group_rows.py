"""Sparse embeddings among real processes: kills, joins and half-made updates cost no bit of a table."""

import multiprocessing as mp
from functools import partial
from pathlib import Path
from typing import Any

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

ROWS, BATCH, EPOCHS = 150, 32, 3
STEPS = EPOCHS * 5
USERS, ITEMS, WIDTH = 300, 2000, 8


class Ratings(nn.Module):
    """A user's and some items' rows, added up, and a small net on top."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = nn.EmbeddingBag(ITEMS, WIDTH, mode="sum", sparse=True)
        self.out = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.out(self.users(users) + self.items(items))


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(USERS, (ROWS,), generator=generator)
    items = torch.randint(ITEMS, (ROWS, 4), generator=generator)
    return TensorDataset(users, items % (1 + users[:, None] * 7), (users + items[:, 0]) % 2)


def train(session: Session, steps: Path | None = None, *, stumbles: bool = False) -> None:
    """Two optimizers, clipping, a schedule; in `steps` every server leaves a file for each step it has applied."""
    net = session.model(Ratings())
    tables = [net.users.weight, net.items.weight]
    of_tables = session.optimizer(torch.optim.SparseAdam(tables, lr=0.05), clip_norm=0.2)
    rest = session.optimizer(torch.optim.Adam(net.out.parameters(), lr=0.01))
    session.scheduler(torch.optim.lr_scheduler.StepLR(rest, step_size=4, gamma=0.7))
    falls = [True, False]

    def stumble(*_: Any) -> None:
        """Server s1 breaks in its eighth update: once after s0 has made it, once more in the repeated step."""
        if stumbles and mp.current_process().name == "s1" and session.global_step == 7 and falls:
            if falls.pop(0):
                assert steps is not None
                await_file(steps / "s0-8")
            raise ExchangeBroken(rank=1, phase="update", bucket=None, why="this test says so")

    def note(*_: Any) -> None:
        if steps is not None:
            (steps / f"{mp.current_process().name}-{session.global_step + 1}").touch()

    of_tables.register_step_pre_hook(stumble)
    rest.register_step_post_hook(note)
    data = rows()
    for _ in range(EPOCHS):
        for users, items, liked in session.batches(data):
            session.step(F.cross_entropy(net(users, items), liked))


def job(servers: int = 0, **changes: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "rows",
        "entrypoint": "rows:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": BATCH, "logical_shards": 4},
        "debug": {"ledger": True},
    }
    if servers:
        kinds = {"intra_node": "parameter_server", "inter_node": "parameter_server"}
        base["sync"] = kinds | {"servers": servers}
    return JobSpec.parse(base | changes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one process that computes every shard itself."""
    torch.set_num_threads(1)
    finished, _ = run_local(job(), train, tmp_path_factory.mktemp("alone"))
    assert finished.steps == STEPS
    return finished.digest


def check(play: Play, digest: str) -> None:
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == digest
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    for epoch in range(EPOCHS):
        of_epoch = [row for s, _, row in play.settled_rows() if epoch * 5 < s <= (epoch + 1) * 5]
        assert sorted(of_epoch) == list(range(ROWS))


@pytest.mark.parametrize("servers", [0, 1, 2])
def test_a_killed_worker_costs_no_bit_and_few_bytes_travel(
    undisturbed: str, tmp_path: Path, servers: int
) -> None:
    play = Cast(
        job(servers), train, FaultPlan().kill("w2" if servers < 2 else "w3", at_step=7), tmp_path
    ).play()
    check(play, undisturbed)
    assert play.worlds[:2] == [3, 2]
    dense = 4 * WIDTH * (USERS + ITEMS)
    # A replacement may come before the end and is told all rows: from the first step that is let out after it came.
    until = play.plans[2].recorded_step if len(play.plans) > 2 else STEPS + 1
    assert until >= 7
    for step, values in play.values:
        assert 0 < values["comm_bytes"] < dense / 10 or step >= until


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("phase", ["exchange", "committed"])
def test_a_worker_killed_in_the_middle_of_a_step_costs_servers_no_bit(
    undisturbed: str, tmp_path: Path, servers: int, phase: str
) -> None:
    play = Cast(job(servers), train, FaultPlan().kill("w3", at_step=7, phase=phase), tmp_path).play()
    check(play, undisturbed)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == ["w3"]


def test_a_joiner_is_healed_with_the_whole_tables(undisturbed: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w2", at_step=3).hold("w3", at_step=8, for_generation=3)
    play = Cast(job(2), train, faults, tmp_path).play()
    check(play, undisturbed)
    assert play.worlds == [3, 2, 3]


def test_a_server_that_is_ahead_publishes_its_rows_in_the_repeated_step(
    undisturbed: str, tmp_path: Path
) -> None:
    play = Cast(job(2), partial(train, steps=tmp_path, stumbles=True), artifacts=tmp_path / "out").play()
    check(play, undisturbed)
    assert play.worlds == [3, 3, 3]
    _, second, _ = play.plans
    assert ("s0", "s1") in second.heals


def test_rows_that_two_servers_made_and_nobody_received_are_not_lost(
    undisturbed: str, tmp_path: Path
) -> None:
    faults = FaultPlan().stumble("s1", at_step=8, phase="committed", once=tmp_path / "s0-8")
    play = Cast(job(2), partial(train, steps=tmp_path), faults, tmp_path / "out").play()
    check(play, undisturbed)
    _, second = play.plans
    assert sorted(receiver for receiver, _ in second.heals) == ["w2", "w3", "w4"]
