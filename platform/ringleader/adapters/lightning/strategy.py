"""Lightning's `Trainer` on a session: `Trainer(strategy=RingleaderStrategy(session), …)`.

The trainer's own loops run, hooks, validation and all, on every member. Where it asks for a training step the strategy
runs the module's for each slice of it that this worker has, and the session does backward, update and commit.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ringleader.adapters.library import needed
from ringleader.adapters.lightning.checks import changes_batches, check_accumulation, check_fit, check_trainer
from ringleader.adapters.lightning.results import StepResults
from ringleader.adapters.lightning.schedules import (
    PlateauAtEpochs,
    ScheduleOfEpochs,
    ScheduleOfTrainer,
    plateau_of,
    step_of_trainer,
)
from ringleader.adapters.lightning.state import FitState
from ringleader.adapters.lightning.steps import FitSteps, StepBatch, StepLoader
from ringleader.adapters.session_loop import PassRows, check_batch_size, record, refuse
from ringleader.train import Session

with needed("lightning", "lightning"):
    from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
    from lightning.pytorch.callbacks import ModelSummary, ProgressBar
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.loops.optimization.closure import AbstractClosure
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.trainer.states import TrainerFn

KEPT = "lightning"
SEVERAL = (
    "several loaders to train on",
    "Give the trainer one DataLoader; its data set may have several parts.",
)


class SessionLogger(DummyLogger):  # type: ignore[misc]
    """The trainer's logger on a session: numbers are recorded at the newest step.

    Args:
        named: the name under which to record a number, by that of the log; empty for what is recorded anyway.
    """

    def __init__(self, session: Session, named: Callable[[str], str]) -> None:
        super().__init__()
        self._session = session
        self._named = named

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Record numbers; `step` is not used: records are by `session.global_step`."""
        named = {self._named(name): float(value) for name, value in metrics.items()}
        record(self._session, {name: value for name, value in named.items() if name})


class RingleaderStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """The strategy by which Lightning's `Trainer` keeps the session's guarantees: one optimizer, automatic.

    Each logical shard counts as a process: the loader's `batch_size` × `accumulate_grad_batches` × shards is the job's
    `batch.global_size`.
    """

    def __init__(self, session: Session) -> None:
        on_gpu = session.device.type == "cuda"
        super().__init__(session.device, accelerator=CUDAAccelerator() if on_gpu else CPUAccelerator())
        self.session = session
        self.world_size = session._spec.shards
        self._registered: Any = None
        self._results = StepResults(self.reduce)
        self._plateaus: list[PlateauAtEpochs] = []
        self._fit: FitSteps | None = None
        self._moves_nothing = False

    # --- a trainer's run ---------------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Check what the trainer asks for, and put in its place what reports."""
        super().setup_environment()
        trainer = self.lightning_module.trainer
        check_trainer(self.session, trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            check_fit(self.session, trainer)
        if any(type(logger) is not DummyLogger for logger in trainer.loggers):
            trainer.loggers = [SessionLogger(self.session, self._results.recorded_name)]
        shown = (ProgressBar, ModelSummary)
        trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, shown)]
        # The platform has its own way with signals, and finishes the step.
        trainer._signal_connector.register_signal_handlers = _nothing

    def setup(self, trainer: Any) -> None:
        """Register everything with the session."""
        fits = trainer.state.fn == TrainerFn.FITTING
        if fits:
            self._fit = None
            trainer.fit_loop.epoch_loop._results = self._results
            trainer.fit_loop._skip_backward = True
            # Rows are in host memory. To find that out for each slice takes the trainer a tenth of its own lines' time.
            self._moves_nothing = self.session.device.type == "cpu" and not changes_batches(trainer)
            module = self.lightning_module
            module._on_before_batch_transfer = self._before_transfer
            module.on_validation_model_zero_grad = _nothing
        super().setup(trainer)
        if fits:
            self.lightning_module.lr_scheduler_step = step_of_trainer

    def _setup_model(self, model: Any) -> Any:
        if self._fits and self._registered is not model:
            self._registered = self.session.model(model)
        return model

    def setup_optimizers(self, trainer: Any) -> None:
        """Register optimizer and schedules."""
        super().setup_optimizers(trainer)
        (optimizer,) = self.optimizers
        self.session.optimizer(optimizer, clip_norm=trainer.gradient_clip_val or None)
        self._plateaus = []
        for config in self.lr_scheduler_configs:
            if config.reduce_on_plateau:
                config.scheduler = plateau_of(config)
                self._plateaus.append(config.scheduler)
                continue
            schedule = ScheduleOfEpochs(
                config.scheduler,
                config.interval,
                config.frequency,
                first_epoch=trainer.current_epoch,
                sizes=lambda: (trainer.num_training_batches, trainer.accumulate_grad_batches),
            )
            self.session.scheduler(schedule)  # type: ignore[type-var]
            config.scheduler = ScheduleOfTrainer(config.scheduler)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Rows by steps where the module trains; other loaders go over all rows on every worker."""
        trainer = self.lightning_module.trainer
        if not trainer.training:
            return dataloader
        if self._fit is not None:
            refuse(*SEVERAL)
        if not isinstance(dataloader, DataLoader):
            refuse(f"a {type(dataloader).__name__} to train on", "Give the trainer one DataLoader.")
        rows = PassRows.of_loader(dataloader, "Trainer(gradient_clip_val=1.0)")
        size = rows.batch_size or 1
        check_batch_size(self.session, size, trainer.accumulate_grad_batches)
        state = FitState(trainer, self._results, self._plateaus)
        number = sum(name.startswith(KEPT) for name in self.session._held.kept)
        self.session.keep(f"{KEPT}.{number}", state)
        self._fit = FitSteps(self.session, trainer, state, rows)
        return StepLoader(self._fit, rows, size * self.session._spec.shards)

    def on_train_start(self) -> None:
        """The trainer is about to train."""
        trainer = self.lightning_module.trainer
        rows = self.fit.rows
        size = self.session._spec.batch.global_size
        check_accumulation(trainer, len(rows.dataset), size, drop_last=rows.drop_last)
        steps = trainer.estimated_stepping_batches
        if steps != float("inf"):
            self.session._loops.expect(int(steps))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """The trainer is at a batch: what its hooks log counts by the rows of the step."""
        self._results.batch_size = self.fit.step_rows

    def on_train_end(self) -> None:
        """The trainer's last line of a fit."""
        self.fit.end()

    def teardown(self) -> None:
        """Give the module back; it stays on the session's device."""
        for name in ("_on_before_batch_transfer", "on_validation_model_zero_grad", "lr_scheduler_step"):
            self.lightning_module.__dict__.pop(name, None)
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    # --- a step ------------------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, *others: Any) -> Any:
        """A step: the module's for each slice that this worker has, and `session.step`."""
        if not isinstance(batch, StepBatch):
            refuse(*SEVERAL)
        if self.fit.accumulates:
            return torch.tensor(float("nan"))  # the loss is there once the step's last batch is
        module, results = self.lightning_module, self._results
        for rows in self.fit.slices:
            moved = self._moved(rows)
            with results.collected() as logged:
                output = module.training_step(moved, *others)
            loss, weight = self._loss(output)
            self.session.step(loss, weight=weight, **results.metrics_of(logged, loss))
        whole, means = self.session.loss or 0.0, self.session._member.progress.values
        results.give(module.trainer._logger_connector, whole, means, self.fit.step_rows)
        return torch.tensor(whole)

    def _moved(self, rows: Any) -> Any:
        """A slice as the module gets it."""
        if self._moves_nothing:
            return rows
        return self.batch_to_device(
            self.lightning_module._call_batch_hook("on_before_batch_transfer", rows, 0)
        )

    def _loss(self, output: Any) -> tuple[Tensor, float | None]:
        """The loss of a slice, and how much it counts."""
        if isinstance(output, dict):
            others = sorted(output.keys() - {"loss", "weight"})
            if others:
                self.session._member.warnings.add(
                    "lightning",
                    f"training_step returns {', '.join(map(repr, others))} beside the loss, which on_train_batch_end "
                    f"does not get: a step's slices are on several workers.",
                    "Give self.log numbers; their means over all rows of the step are recorded.",
                )
            return output["loss"], output.get("weight")
        if output is None:
            refuse("training_step returning None", "Return loss * 0: the rows count with a gradient of 0.")
        return output, None

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **named: Any
    ) -> Any:
        """The step: the session updates in it. Raises StepMisuse: it is the program's own, and not the trainer's."""
        if not isinstance(closure, AbstractClosure):
            refuse(
                "self.optimizers().step()",
                "Return the loss from training_step, and leave the line out: the session updates once a step, with the "
                "gradient of all its rows.",
            )
        return closure()

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        """Move a batch to the device, by the module's hooks."""
        return (
            batch if isinstance(batch, StepBatch) else super().batch_to_device(batch, device, dataloader_idx)
        )

    def _before_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        if isinstance(batch, StepBatch):
            return batch
        return self.lightning_module._call_batch_hook("on_before_batch_transfer", batch, dataloader_idx)

    # --- what all workers know ---------------------------------------------------------------------------------------

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker prints and saves."""
        return self.session.is_main

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensor itself, outside of training: there every worker goes over all rows."""
        if self._results.collects:
            refuse(
                "all_gather in training_step",
                "A turn has one slice of the batch, and other workers are not at theirs at the same time.",
            )
        return tensor

    # --- files -------------------------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint on one worker; nothing while the trainer fits: the job's checkpoints have it all."""
        if not self._fits:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        self.session._member.warnings.add(
            "lightning",
            "ModelCheckpoint writes no files in a job.",
            "The job's checkpoints hold model, optimizer and the trainer's state (checkpoint: in the job file); "
            "write Trainer(enable_checkpointing=False), session.best(module, score) for the best weights, and "
            "trainer.save_checkpoint(path) after fit().",
        )

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint that was written."""
        if not self._fits:
            super().remove_checkpoint(filepath)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The optimizer's state, outside of a fit."""
        return {} if self._fits else super().optimizer_state(optimizer)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> NoReturn:
        """Refused: a session has other ways."""
        refuse(
            f"ckpt_path={str(checkpoint_path)!r}",
            "Leave it out: a later attempt of the job goes on by itself; init_from: in the job file begins with the "
            "weights of another job, or of a file; session.load_best(module) gives the best ones.",
        )

    @property
    def fit(self) -> FitSteps:
        """The running fit."""
        assert self._fit is not None
        return self._fit

    @property
    def _fits(self) -> bool:
        state = self.lightning_module.trainer.state
        return state.fn == TrainerFn.FITTING and not state.finished


def _nothing(*_: Any) -> None:
    """Nothing."""
