"""Lightning's Trainer keeps its library's result and the session's bits, also while workers come and go."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import BATCH, EPOCHS, SERVERS, SHARDS, SPEC, SessionOrder, alone, close, differing, disturbed
from cast import Cast
from faults import FaultPlan
from forks import LOADED
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Dataset

from ringleader.spec import JobSpec
from ringleader.train import Session

pytest.importorskip("lightning", reason="lightning is not installed: pip install -e .[lightning]")

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.demos.lstm import LightningLSTM
from lightning.pytorch.demos.transformer import LightningTransformer

from ringleader.adapters.lightning import RingleaderStrategy

LOADED.append("ringleader.adapters.lightning")  # seconds of each process of a play
ROWS, WORDS = 64, 53
STEPS = EPOCHS * ROWS // BATCH
NORM = 0.5
QUIET: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def points(rows: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed))


class Words(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The rows of Lightning's WikiText2, of words that are drawn."""

    def __init__(self, count: int = ROWS) -> None:
        self.words = torch.randint(0, WORDS, (count, 9), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.words[row, :-1], self.words[row, 1:]


class Rows(Dataset[torch.Tensor]):
    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.values[row]


class Boring(BoringModel):
    """Lightning's own, on rows that are the same everywhere, with a rate by step."""

    interval = "step"

    def __init__(self) -> None:
        super().__init__()
        self.data = Rows(points(ROWS))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.step(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("mean", batch.mean())
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.step(batch))

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Rows(points(20, seed=4)), batch_size=8)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = LambdaLR(optimizer, lambda step: 0.8**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": self.interval}}


class ByEpoch(Boring):
    """A rate that a plateau lowers, and one by epochs."""

    interval = "epoch"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        return [optimizer], [
            {"scheduler": StepLR(optimizer, 2), "interval": "epoch"},
            {"scheduler": plateau, "monitor": "val_loss"},
        ]


class Transformer(LightningTransformer):
    """Lightning's own, smaller."""

    def __init__(self) -> None:
        super().__init__(vocab_size=WORDS)
        self.data = Words()

    def prepare_data(self) -> None:
        """Nothing to load down."""


class Lstm(LightningLSTM):
    """Lightning's own, with a hidden state that begins anew with each batch."""

    def __init__(self) -> None:
        super().__init__(vocab_size=WORDS)
        self.data = Words()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.hidden = None
        return super().training_step(batch, batch_idx)

    def prepare_data(self) -> None:
        """Nothing to load down."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def shrink() -> None:
    """Make the demos small, and without dropout, whose draws are those of a slice here, and of a batch there."""
    from lightning.pytorch.demos import lstm, transformer

    lstm.SimpleLSTM.__init__.__defaults__ = (WORDS, 16, 16, 2, 0.0)
    transformer.Transformer.__init__.__defaults__ = (WORDS, 16, 2, 16, 1, 0.0)
    transformer.PositionalEncoding.__init__.__defaults__ = (0.0, 64)


def made(kind: Callable[[], Any]) -> Any:
    shrink()
    torch.manual_seed(1)
    return kind()


def trained(session: Session, kind: Callable[[], Any], batch: int = BATCH // SHARDS, **asked: Any) -> Trainer:
    """What a user writes, but for the strategy."""
    module = made(kind)
    trainer = Trainer(strategy=RingleaderStrategy(session), **QUIET | asked)
    trainer.fit(module, DataLoader(module.data, batch, shuffle=True))
    return trainer


def adapted(session: Session, kind: Callable[[], Any] = Boring, **asked: Any) -> None:
    trainer = trained(session, kind, gradient_clip_val=NORM, **asked)
    assert (trainer.global_step, trainer.current_epoch) == (STEPS, EPOCHS)


def native(session: Session, kind: Callable[[], Any] = Boring) -> None:
    module = made(kind)
    session.model(module)
    made_here = module.configure_optimizers()
    optimizer = made_here["optimizer"] if isinstance(made_here, dict) else made_here
    session.optimizer(optimizer, clip_norm=NORM)
    if isinstance(made_here, dict):
        session.scheduler(made_here["lr_scheduler"]["scheduler"])
    module.log = lambda *_, **__: None
    for _ in range(EPOCHS):
        for batch in session.batches(module.data):
            output = module.training_step(batch, 0)
            session.step(output["loss"] if isinstance(output, dict) else output)


def library(
    kind: Callable[[], Any], batch: int = BATCH, **asked: Any
) -> tuple[Trainer, dict[str, torch.Tensor]]:
    """Lightning's own run, in one process, in the session's order of rows."""
    module = made(kind)
    trainer = Trainer(accelerator="cpu", **QUIET | {"gradient_clip_val": NORM} | asked)
    trainer.fit(module, DataLoader(module.data, batch, sampler=SessionOrder(ROWS)))
    return trainer, module.state_dict()


KINDS = [Boring, Transformer, Lstm]


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_ends_as_lightning_does(kind: Callable[[], Any], tmp_path: Path) -> None:
    _, theirs = library(kind)
    _, ours, _ = alone(partial(adapted, kind=kind), tmp_path)
    assert close(ours, {name: theirs[name] for name in ours})


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_has_the_bits_of_a_native_function(kind: Callable[[], Any], tmp_path: Path) -> None:
    ours = alone(partial(adapted, kind=kind), tmp_path / "ours")[0]
    assert ours.digest == alone(partial(native, kind=kind), tmp_path / "native")[0].digest


@pytest.mark.parametrize("spec", [SPEC, SERVERS], ids=["ring", "servers"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_keeps_its_bits_while_a_worker_dies_and_another_one_leaves(
    kind: Callable[[], Any], spec: JobSpec, tmp_path: Path
) -> None:
    ours, _, _ = alone(partial(adapted, kind=kind), tmp_path / "ours")
    play = disturbed(partial(adapted, kind=kind), STEPS, tmp_path, spec)
    assert play.digest == ours.digest


# --- what the trainer does from step to step ----------------------------------------------------------------------


def monitored(session: Session) -> None:
    """Validation twice an epoch, a plateau, and metrics of training and validation that a later line goes by."""
    trainer = trained(session, ByEpoch, val_check_interval=2, log_every_n_steps=1)
    told = {name: float(value) for name, value in trainer.callback_metrics.items()}
    with torch.no_grad():
        trainer.lightning_module.layer.weight += sum(
            told.values()
        )  # workers end with the same weights, or fail


def test_validation_and_plateaus_are_those_of_lightning(tmp_path: Path) -> None:
    theirs, weights = library(ByEpoch, val_check_interval=2, gradient_clip_val=None)
    told: dict[str, float] = {}

    def ours(session: Session) -> None:
        trainer = trained(session, ByEpoch, val_check_interval=2)
        told.update({name: float(value) for name, value in trainer.callback_metrics.items()})

    assert close(alone(ours, tmp_path)[1], weights)
    assert told == pytest.approx(
        {name: float(value) for name, value in theirs.callback_metrics.items()}, abs=1e-6
    )
    assert set(told) == {"train_loss", "train_loss_step", "train_loss_epoch", "mean", "val_loss"}


@pytest.mark.parametrize("step", range(1, STEPS, 3))
def test_a_worker_that_comes_at_any_step_knows_what_was_logged(step: int, tmp_path: Path) -> None:
    ours, _, _ = alone(monitored, tmp_path / "ours")
    play = Cast(SPEC, monitored, FaultPlan().kill("w1", at_step=step), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {finished.reproducible_why for finished in play.finished.values()} == {""}
    assert play.reported("member.differed") == []
    assert play.digest == ours.digest


def accumulated(session: Session) -> None:
    trainer = trained(session, Boring, BATCH // SHARDS // 2, accumulate_grad_batches=2, val_check_interval=3)
    assert trainer.global_step == STEPS


def test_batches_are_accumulated_as_lightning_does(tmp_path: Path) -> None:
    theirs = library(Boring, BATCH // 2, accumulate_grad_batches=2, gradient_clip_val=None)[1]
    ours, weights, _ = alone(accumulated, tmp_path / "ours")
    assert close(weights, theirs)
    assert disturbed(accumulated, STEPS, tmp_path).digest == ours.digest


def stopped_early(session: Session) -> None:
    """A rate that makes it worse from the first; the loop is left in the middle of the second epoch."""
    stop = EarlyStopping("val_loss", patience=2, min_delta=100.0)
    trainer = trained(session, Boring, val_check_interval=2, callbacks=[stop])
    assert trainer.global_step == 6, trainer.global_step
    assert stop.stopped_epoch == 1


def test_a_worker_that_comes_late_stops_early_with_the_others(tmp_path: Path) -> None:
    ours, _, _ = alone(stopped_early, tmp_path / "ours")
    for step in (3, 5):
        play = Cast(SPEC, stopped_early, FaultPlan().kill("w1", at_step=step), artifacts=tmp_path).play()
        assert play.outcome == "succeeded", (play.reason, play.message)
        assert play.digest == ours.digest


def ended_by_steps(session: Session) -> None:
    trainer = trained(session, Boring, max_steps=6, limit_val_batches=0)
    assert (trainer.global_step, session.global_step) == (6, 6)


def test_max_steps_ends_an_epoch_in_its_middle_for_all(tmp_path: Path) -> None:
    ours, _, _ = alone(ended_by_steps, tmp_path / "ours")
    play = Cast(SPEC, ended_by_steps, FaultPlan().kill("w2", at_step=5), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == ours.digest


def test_the_trainer_makes_the_same_where_its_lines_run_again(tmp_path: Path) -> None:
    assert differing("test_lightning:monitored", tmp_path) == []
