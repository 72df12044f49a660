"""What a Lightning trainer and its module may ask for on a session."""

from typing import Any

from ringleader.adapters.library import needed
from ringleader.adapters.session_loop import check_no_process_group, refuse
from ringleader.errors import StepMisuse
from ringleader.train import Session

with needed("lightning", "lightning"):
    from lightning.pytorch import Callback, LightningDataModule, LightningModule
    from lightning.pytorch import callbacks as theirs
    from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.utilities.model_helpers import is_overridden

BETWEEN = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
"""Hooks between forward and update: no worker has the whole gradient there."""
_OWN_UPDATE = (
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
)
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks around a batch's way to the device."""
_RATES = "Write the schedule in configure_optimizers, and leave the callback out."
_WEIGHTS = "Weights change by updates alone. For an average there is session.ema(model, decay)."
_CALLBACKS = {
    theirs.BatchSizeFinder: "A step has the job's rows: leave it out.",
    theirs.LearningRateFinder: "Submit a job for each rate.",
    theirs.BaseFinetuning: "Freeze parameters between two fits.",
    theirs.GradientAccumulationScheduler: "A step has the job's rows: leave it out.",
    theirs.StochasticWeightAveraging: _WEIGHTS,
    theirs.WeightAveraging: _WEIGHTS,
    theirs.ModelPruning: _WEIGHTS,
    theirs.Timer: "Workers have clocks of their own: use max_steps or max_epochs.",
}
_DEFAULT_LOGGERS = (CSVLogger, TensorBoardLogger, DummyLogger)
LOGS = "Leave it out: what self.log is given is in ringleader metrics, on the page and in MLflow."


def check_fit(session: Session, trainer: Any) -> None:
    """Check what a fit asks for. Raises StepMisuse: naming what cannot be kept, and what to write."""
    module = trainer.lightning_module
    if not module.automatic_optimization:
        refuse(
            "manual optimization (automatic_optimization = False)",
            "Return one loss from training_step, the sum of several; for several optimizers by turns write a training "
            "function with session.steps.",
        )
    for name in (*BETWEEN, *_OWN_UPDATE):
        if is_overridden(name, module, parent=LightningModule):
            refuse(
                f"{type(module).__name__}.{name}",
                "No worker has the whole gradient there, and the session updates. Clip by gradient_clip_val, "
                "change what each slice adds by p.register_hook, and register schedules in configure_optimizers.",
            )
    _check_options(session, trainer)


def changes_batches(trainer: Any) -> bool:
    """Whether the module, or its data module, does anything with a batch on its way to the device."""
    owners = (
        (trainer.lightning_module, LightningModule),
        (getattr(trainer, "datamodule", None), LightningDataModule),
    )
    return any(
        owner is not None and is_overridden(name, owner, parent=parent)
        for owner, parent in owners
        for name in _TRANSFERS
    )


def check_trainer(session: Session, trainer: Any) -> None:
    """Check the trainer's callbacks, loggers and devices. Raises StepMisuse."""
    for callback in trainer.callbacks:
        kind = type(callback)
        for refused, hint in _CALLBACKS.items():
            if isinstance(callback, refused):
                refuse(kind.__name__, hint)
        for name in BETWEEN:
            if getattr(kind, name) is not getattr(Callback, name):
                refuse(
                    f"{kind.__name__}.{name}",
                    "No worker has the whole gradient there. Use on_train_batch_end, which is called after each step.",
                )
        if getattr(callback, "_train_time_interval", None) is not None:
            refuse(
                f"{kind.__name__}(train_time_interval=…)",
                "Workers have clocks of their own: use every_n_epochs.",
            )
    for logger in trainer.loggers:
        if isinstance(logger, Logger) and not isinstance(logger, _DEFAULT_LOGGERS):
            refuse(f"Trainer(logger={type(logger).__name__}(…))", LOGS)
    check_no_process_group(
        "Start the function as a job, without torchrun, and without another strategy such as ddp or fsdp."
    )


def _check_options(session: Session, trainer: Any) -> None:
    connector = trainer._accelerator_connector
    asked = {
        "precision": (
            trainer.precision != "32-true",
            "Write precision: bf16 (or fp16) in the job file.",
        ),
        "gradient_clip_algorithm='value'": (
            trainer.gradient_clip_algorithm == "value" and trainer.gradient_clip_val is not None,
            f"Clip by the norm, or by p.register_hook(lambda g: g.clamp(-{trainer.gradient_clip_val}, "
            f"{trainer.gradient_clip_val})).",
        ),
        "val_check_interval": (
            trainer._val_check_time_interval is not None,
            "Workers have clocks of their own: give a number of batches, or a share of an epoch.",
        ),
        "reload_dataloaders_every_n_epochs": (
            trainer.reload_dataloaders_every_n_epochs > 0,
            "Call trainer.fit once for each data set.",
        ),
        "devices, num_nodes": (
            _many(connector._devices_flag) or _many(connector._num_nodes_flag),
            "A process is one worker: workers: {min: 2, max: 4} in the job file.",
        ),
        "sync_batchnorm": (
            connector._layer_sync is not None,
            "Slices do not run at the same time: buffers are those that the first shard leaves.",
        ),
    }
    for name, (is_asked, hint) in asked.items():
        if is_asked:
            refuse(f"Trainer({name}=…)" if "=" not in name else f"Trainer({name})", hint)
    if not session._member.rules.commits_together or session._spec.sync.round_steps > 1:
        raise StepMisuse(
            "Lightning's trainer counts steps that all workers commit together, and this job's sync has none.",
            hint="Write sync: ring, or synchronous parameter servers.",
        )


def _many(asked: Any) -> bool:
    """Whether more than one device, or node, is asked for."""
    return len(asked) > 1 if isinstance(asked, list) else str(asked).isdigit() and int(asked) > 1


def check_accumulation(trainer: Any, rows: int, size: int, *, drop_last: bool) -> None:
    """Check that each step of an epoch has all its batches. Raises StepMisuse: the trainer would divide the gradient
    of a shorter one by batches that it does not have."""
    accumulated, batches = trainer.accumulate_grad_batches, trainer.num_training_batches
    whole = batches % accumulated == 0 and (rows % size == 0 or drop_last)
    if accumulated > 1 and not whole:
        raise StepMisuse(
            f"the {batches} batches ({rows} rows) of an epoch are no whole number of steps of {accumulated} batches "
            f"({size} rows): Lightning divides the gradient of the last one by {accumulated} all the same.",
            hint=f"Give a multiple of {size} rows, Subset(dataset, range({rows - rows % size})), or a larger "
            f"batch_size in place of accumulate_grad_batches.",
        )
