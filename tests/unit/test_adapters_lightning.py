"""What Lightning's Trainer and Fabric are refused on a session, by name and with what to write instead, and what they
log there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ringleader.errors import DatasetUnsupported, StepMisuse
from ringleader.train import Session, local_session

pytest.importorskip("lightning", reason="lightning is not installed: pip install -e .[lightning]")

from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.demos.boring_classes import (
    BoringModel,
    ManualOptimBoringModel,
    RandomIterableDataset,
)
from lightning.pytorch.demos.lstm import SequenceSampler
from lightning.pytorch.loggers import CSVLogger, Logger

from ringleader.adapters.fabric import RingleaderStrategy as OfFabric
from ringleader.adapters.lightning import RingleaderStrategy

QUIET: dict[str, Any] = {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False}


def spec(**batch: Any) -> dict[str, Any]:
    sizes = {"global_size": 8, "logical_shards": 2} | batch
    return {"name": "refused", "entrypoint": "refused:train", "batch": sizes, "workers": {"max": 2}}


@pytest.fixture
def session() -> Iterator[Session]:
    with local_session(spec()) as opened:
        yield opened


class Rows(Dataset[torch.Tensor]):
    def __init__(self, count: int = 16) -> None:
        self.values = torch.randn(count, 32, generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.values[row]


class Module(BoringModel):
    def train_dataloader(self) -> Any:
        return DataLoader(Rows(), batch_size=4)

    def val_dataloader(self) -> Any:
        return DataLoader(Rows(6), batch_size=4)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(session: Session, module: LightningModule | None = None, loader: Any = None, **asked: Any) -> Trainer:
    trainer = Trainer(strategy=RingleaderStrategy(session), **QUIET | asked)
    trainer.fit(module or Module(), loader)
    return trainer


class ReadsGradients(Callback):
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        pass


class OtherLogger(Logger):
    name = version = "other"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        pass

    def log_hyperparams(self, params: Any, *given: Any, **named: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"accumulate_grad_batches": 2}, r"16 rows \(batch size 4 × accumulation 2 × 2 logical shards\).* is 8"),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, r"p\.register_hook"),
        ({"precision": "bf16-mixed"}, "precision: bf16"),
        ({"devices": 2}, "workers: {min: 2"),
        ({"reload_dataloaders_every_n_epochs": 1}, "once for each data set"),
        ({"val_check_interval": "00:00:00:10"}, "clocks of their own"),
        ({"sync_batchnorm": True}, "the first shard leaves"),
        ({"callbacks": [ReadsGradients()]}, r"ReadsGradients\.on_before_optimizer_step .*on_train_batch_end"),
        ({"callbacks": [StochasticWeightAveraging(0.1)]}, r"session\.ema"),
        ({"callbacks": [Timer("00:00:10:00")]}, "max_steps"),
        ({"callbacks": [LearningRateFinder()]}, "a job for each rate"),
        ({"callbacks": [ModelCheckpoint(train_time_interval=1)]}, "every_n_epochs"),
        ({"logger": OtherLogger()}, "ringleader metrics"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)  # fmt: skip
def test_what_a_trainer_cannot_keep_is_refused_by_name(
    session: Session, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(StepMisuse, match=says):
        fit(session, **asked)
    assert session.global_step == 0


class ClipsItself(Module):
    def configure_gradient_clipping(self, *given: Any, **named: Any) -> None:
        pass


class UpdatesItself(Module):
    def optimizer_step(self, *given: Any, **named: Any) -> None:
        pass


class LooksAtGradients(Module):
    def on_after_backward(self) -> None:
        pass


class Skips(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class StepsByHand(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizers().step()
        return self.step(batch)


class StepsWithAClosure(Module):
    def on_train_batch_end(self, *given: Any, **named: Any) -> None:
        self.optimizers().step(lambda: None)


class Schedules(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()


class ReadsItsGradients(Module):
    def on_train_batch_end(self, *given: Any, **named: Any) -> None:
        self.layer.weight.grad.norm()


class Sums(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.step(batch)
        self.log("largest", loss, reduce_fx="max")
        return loss


class Plateau(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        schedule = {"scheduler": plateau, "monitor": "x", "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class ReadsTheBatch(Module):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        batch[0].mean()


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (ManualOptimBoringModel(), "manual optimization .*sum of several"),
        (ClipsItself(), "ClipsItself.configure_gradient_clipping .*gradient_clip_val"),
        (UpdatesItself(), "UpdatesItself.optimizer_step"),
        (LooksAtGradients(), "LooksAtGradients.on_after_backward"),
        (Skips(), r"loss \* 0"),
        (Sums(), "means over rows"),
        (StepsByHand(), r"self\.optimizers\(\)\.step\(\) .*leave the line out"),
        (StepsWithAClosure(), r"self\.optimizers\(\)\.step\(\) "),
        (Schedules(), r"self\.lr_schedulers\(\)\.step\(\) .*interval"),
        (ReadsItsGradients(), r"'layer.weight' was read.*Trainer\(gradient_clip_val=1.0\)"),
        (Plateau(), "interval: epoch"),
        (ReadsTheBatch(), "several workers"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_module_cannot_keep_is_refused_by_name(
    session: Session, module: LightningModule, says: str
) -> None:
    with pytest.raises(StepMisuse, match=says):
        fit(session, module)


@pytest.mark.parametrize(
    ("loader", "error", "says"),
    [
        (DataLoader(RandomIterableDataset(32, 8), batch_size=4), DatasetUnsupported, "map-style"),
        (DataLoader(Rows(), batch_sampler=SequenceSampler(Rows(), 4)), StepMisuse, "batch_sampler"),
        ({"a": DataLoader(Rows(), 4), "b": DataLoader(Rows(), 4)}, StepMisuse, "several loaders"),
    ],
    ids=["iterable", "batch_sampler", "several"],
)
def test_rows_whose_place_is_not_known_are_refused(
    session: Session, loader: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        fit(session, loader=loader)


def test_steps_that_lightning_would_weigh_less_are_refused() -> None:
    with (
        local_session(spec(global_size=16)) as session,
        pytest.raises(StepMisuse, match=r"\(20 rows\).*of 2"),
    ):
        fit(session, loader=DataLoader(Rows(20), 4), accumulate_grad_batches=2)


class Halves(Module):
    def on_after_batch_transfer(self, batch: torch.Tensor, dataloader_idx: int) -> torch.Tensor:
        return batch / 2


class HalvesFirst(Module):
    def on_before_batch_transfer(self, batch: torch.Tensor, dataloader_idx: int) -> torch.Tensor:
        return batch / 2


class HalvesOnTheWay(Module):
    def transfer_batch_to_device(
        self, batch: torch.Tensor, device: torch.device, dataloader_idx: int
    ) -> torch.Tensor:
        return batch / 2


class Halved(LightningDataModule):
    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(Rows(), 4)

    def on_after_batch_transfer(self, batch: torch.Tensor, dataloader_idx: int) -> torch.Tensor:
        return batch / 2


class HalvesByHand(Module):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        return super().training_step(batch / 2, batch_idx)


@pytest.mark.parametrize("kind", [Halves, HalvesFirst, HalvesOnTheWay, Module])
def test_a_batch_is_what_hooks_on_its_way_to_the_device_make_of_it(kind: type[Module]) -> None:
    rows: Any = Halved() if kind is Module else DataLoader(Rows(), 4)
    ends = []
    for module, read in ((kind(), rows), (HalvesByHand(), DataLoader(Rows(), 4))):
        torch.manual_seed(0)
        module.layer.reset_parameters()
        with local_session(spec()) as opened:
            fit(opened, module, read)
        ends.append(module.layer.weight.detach().clone())
    assert torch.equal(*ends)


class Logs(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.step(batch)
        self.log_dict({"both": loss, "step": loss}, on_step=True, on_epoch=False)
        self.log("epoch", loss, on_step=False, on_epoch=True)
        return {"loss": loss, "preds": batch}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.step(batch))


def test_what_is_logged_is_recorded_as_means_over_all_rows(elsewhere: None) -> None:
    with local_session(spec()) as session:
        shown = fit(session, Logs(), log_every_n_steps=1).callback_metrics
    told, events = session._sink.values, session._sink.events  # type: ignore[attr-defined]
    assert {"both", "step", "epoch", "loss"} <= told[1].keys()
    assert told[1]["both"] == pytest.approx(told[1]["loss"])
    mean = (told[1]["loss"] + told[2]["loss"]) / 2
    assert told[2]["epoch_epoch"] == pytest.approx(mean)
    assert shown["epoch"].item() == pytest.approx(mean)
    assert told[2]["val_loss"] == pytest.approx(shown["val_loss"].item())
    assert any("'preds'" in data["message"] for kind, data in events if kind == "warning")


def test_no_checkpoint_files_are_written_in_a_fit_and_that_is_said(session: Session, elsewhere: None) -> None:
    keeps = ModelCheckpoint(dirpath="kept", monitor="val_loss")
    trainer = fit(session, Logs(), callbacks=[keeps, EarlyStopping("val_loss")], logger=CSVLogger("logs"))
    assert keeps.best_model_score is not None
    assert not list(Path().rglob("*.ckpt"))
    assert not Path("logs").exists()
    warned = [data["message"] for kind, data in session._sink.events if kind == "warning"]  # type: ignore[attr-defined]
    assert "ModelCheckpoint writes no files in a job." in warned
    trainer.save_checkpoint("mine.ckpt")
    assert torch.load("mine.ckpt", weights_only=False)["global_step"] == 2
    with pytest.raises(StepMisuse, match="init_from"):
        trainer.fit(Module(), ckpt_path="mine.ckpt")


# --- Fabric --------------------------------------------------------------------------------------------------------


def prepared(session: Session, batch: int = 4, **asked: Any) -> tuple[Fabric, Any, Any, Any]:
    fabric = Fabric(strategy=OfFabric(session, **asked))
    model = torch.nn.Linear(32, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return fabric, model, optimizer, fabric.setup_dataloaders(DataLoader(Rows(), batch))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loop_of_fabric_whose_batches_are_no_step_is_refused(session: Session, steps: int) -> None:
    _, _, _, loader = prepared(session, batch=8, gradient_accumulation_steps=steps)
    with pytest.raises(StepMisuse, match=rf"{16 * steps} rows .*batch\.global_size is 8"):
        next(iter(loader))


def clips_undeclared(fabric: Fabric, model: Any, optimizer: Any, loss: torch.Tensor) -> None:
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)


def clips_values(fabric: Fabric, model: Any, optimizer: Any, loss: torch.Tensor) -> None:
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, clip_val=1.0)


def steps_first(fabric: Fabric, model: Any, optimizer: Any, loss: torch.Tensor) -> None:
    optimizer.step()


def gathers(fabric: Fabric, model: Any, optimizer: Any, loss: torch.Tensor) -> None:
    fabric.all_gather(loss)


def keeps_the_graph(fabric: Fabric, model: Any, optimizer: Any, loss: torch.Tensor) -> None:
    fabric.backward(loss, retain_graph=True)


def goes_backward_twice(fabric: Fabric, model: Any, optimizer: Any, loss: torch.Tensor) -> None:
    fabric.backward(loss)
    fabric.backward(loss)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (clips_undeclared, r"RingleaderStrategy\(session, clip_norm=1\)"),
        (clips_values, r"p\.register_hook"),
        (steps_first, r"before backward\(\)"),
        (gathers, "all_gather in a training loop"),
        (keeps_the_graph, "all losses added"),
        (goes_backward_twice, "session.step was called twice"),
    ],
)
def test_what_a_loop_of_fabric_cannot_keep_is_refused(session: Session, body: Any, says: str) -> None:
    fabric, model, optimizer, loader = prepared(session)
    turns = iter(loader)
    loss = model(next(turns)).mean()
    with pytest.raises(StepMisuse, match=says):
        body(fabric, model, optimizer, loss)


def test_fabric_s_files_and_precision_are_the_job_s(session: Session) -> None:
    with pytest.raises(StepMisuse, match="init_from"):
        Fabric(strategy=OfFabric(session)).load("x.ckpt")
    with pytest.raises(StepMisuse, match="precision: bf16"):
        Fabric(strategy=OfFabric(session), precision="bf16-mixed").setup(torch.nn.Linear(1, 1))


def test_a_loop_of_fabric_records_means_over_all_rows() -> None:
    with local_session(spec()) as session:
        fabric, model, optimizer, loader = prepared(session)
        for batch in loader:
            fabric.backward(model(batch).mean(), mean=batch.mean())
            optimizer.step()
            optimizer.zero_grad()
    told = session._sink.values  # type: ignore[attr-defined]
    assert {"loss", "mean"} <= told[1].keys() & told[2].keys()
