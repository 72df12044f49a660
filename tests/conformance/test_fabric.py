"""Loops written for Lightning's Fabric keep their library's result and the session's bits, also while workers come and
go."""

from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import BATCH, EPOCHS, SERVERS, SHARDS, SPEC, SessionOrder, alone, close, differing, disturbed
from forks import LOADED
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ringleader.spec import JobSpec
from ringleader.train import Session

pytest.importorskip("lightning", reason="lightning is not installed: pip install -e .[lightning]")

from lightning.fabric import Fabric

from ringleader.adapters.fabric import RingleaderStrategy

LOADED.append("ringleader.adapters.fabric")  # seconds of each process of a play
ROWS, NORM = 64, 0.5
STEPS = EPOCHS * ROWS // BATCH


def rows(count: int = ROWS, seed: int = 0) -> TensorDataset:
    points = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points[:, 0] > points[:, 1]).long())


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def trained(fabric: Fabric, train: DataLoader[Any]) -> torch.nn.Module:
    """The loop of Fabric's documents, with a validation and a schedule by epoch."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    train = fabric.setup_dataloaders(train)
    test = fabric.setup_dataloaders(DataLoader(rows(24, seed=5), batch_size=4))
    for _ in range(EPOCHS):
        model.train()
        for x, y in train:
            fabric.backward(F.cross_entropy(model(x), y))
            fabric.clip_gradients(model, optimizer, max_norm=NORM)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            hits = torch.cat([fabric.all_gather(model(x).argmax(1) == y) for x, y in test])
        assert len(hits) == 24
        by_epoch.step()
    return model


def adapted(session: Session) -> None:
    fabric = Fabric(strategy=RingleaderStrategy(session, clip_norm=NORM))
    trained(fabric, DataLoader(rows(), BATCH // SHARDS, shuffle=True))


def accumulated(session: Session) -> None:
    strategy = RingleaderStrategy(session, clip_norm=NORM, gradient_accumulation_steps=2)
    trained(Fabric(strategy=strategy), DataLoader(rows(), BATCH // SHARDS // 2, shuffle=True))


def native(session: Session) -> None:
    model = session.model(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session.optimizer(optimizer, clip_norm=NORM)
    by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))
        by_epoch.step()


@pytest.mark.parametrize("program", [adapted, accumulated])
def test_the_loop_ends_as_with_fabric(program: Any, tmp_path: Path) -> None:
    loader = DataLoader(rows(), BATCH, sampler=SessionOrder(ROWS))
    theirs = trained(Fabric(accelerator="cpu", devices=1), loader).state_dict()
    _, ours, _ = alone(program, tmp_path)
    assert close(ours, {name: theirs[name] for name in ours})


def test_the_loop_has_the_bits_of_a_native_function(tmp_path: Path) -> None:
    bits = {alone(each, tmp_path / each.__name__)[0].digest for each in (adapted, accumulated, native)}
    assert len(bits) == 1


@pytest.mark.parametrize("spec", [SPEC, SERVERS], ids=["ring", "servers"])
def test_the_loop_keeps_its_bits_while_a_worker_dies_and_another_one_leaves(
    spec: JobSpec, tmp_path: Path
) -> None:
    ours, _, _ = alone(adapted, tmp_path / "ours")
    assert disturbed(adapted, STEPS, tmp_path, spec).digest == ours.digest


def by_steps(session: Session) -> None:
    """A schedule that the loop steps, given to `setup`, and metrics."""
    fabric = Fabric(strategy=RingleaderStrategy(session))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)
    model, optimizer, schedule = fabric.setup(model, optimizer, scheduler=schedule)
    train = fabric.setup_dataloaders(DataLoader(rows(), BATCH // SHARDS, shuffle=True))
    for _ in range(EPOCHS):
        for x, y in train:
            out = model(x)
            fabric.backward(F.cross_entropy(out, y), hit=(out.argmax(1) == y).float().mean())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        fabric.print(f"{session.loss:.4f}")


def test_a_schedule_of_steps_advances_once_for_each(tmp_path: Path) -> None:
    def plain(session: Session) -> None:
        model = session.model(network())
        optimizer = session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        session.scheduler(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step))
        for _ in range(EPOCHS):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(model(x), y))

    ours, _, told = alone(by_steps, tmp_path / "ours")
    assert ours.digest == alone(plain, tmp_path / "plain")[0].digest
    assert all("hit" in values for step, values in told.values.items() if step)


def test_the_loop_makes_the_same_where_its_lines_run_again(tmp_path: Path) -> None:
    assert differing("test_fabric:adapted", tmp_path) == []
