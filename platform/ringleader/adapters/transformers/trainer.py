"""The `Trainer` of transformers on a session: `Trainer(…)` becomes `ElasticTrainer(session, …)`.

A step runs the trainer's forward once for each slice of it that this worker has; the session does what comes behind.
What the trainer does once a step (its state, its callbacks, its logs) runs when the step commits, on every member.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ringleader.adapters.library import needed
from ringleader.adapters.session_loop import (
    PassRows,
    SessionSteps,
    check_batch_size,
    record,
    refuse,
    shuffles,
)
from ringleader.adapters.transformers.checks import check_arguments, check_callbacks, check_kind
from ringleader.adapters.transformers.state import LogHistory, StepEnd, TrainingProgress
from ringleader.train import Session
from ringleader.train.rows.slices import check_dataset

with needed("transformers", "hf"):
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments
    from transformers.optimization import GreedyLR

NO_ITEMS = float(torch.finfo(torch.float32).tiny)
"""The weight of a slice whose labels are all left out: a session takes no weight of 0."""


class ElasticTrainer(Trainer):  # type: ignore[misc]
    """transformers' `Trainer` on a session, which keeps the session's guarantees.

    Each logical shard counts as a process: `per_device_train_batch_size` × `gradient_accumulation_steps` × shards is
    the job's `batch.global_size`.

    Args:
        session: the session.
        given: as `Trainer` takes them.

    Raises:
        StepMisuse: naming an argument that cannot be kept, and what to write.
    """

    def __init__(self, session: Session, *given: Any, **named: Any) -> None:
        self.session = session
        self.progress = TrainingProgress(self)
        self.control: Any = None
        check_kind(type(self))
        # Before the trainer acts on them, and fails in words of its own.
        for args in (each for each in (*given, *named.values()) if isinstance(each, TrainingArguments)):
            check_arguments(session, args)
        super().__init__(*given, **named)
        check_arguments(session, self.args)
        for shown in (ProgressCallback, PrinterCallback):
            self.remove_callback(shown)
        check_callbacks(self.callback_handler.callbacks)
        self._looping = self._registered = False
        self._to_record: dict[str, float] = {}

    # --- what the trainer trains -------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> "StepLoader":
        """The rows of one pass, by steps."""
        check_dataset(self.train_dataset)
        args, loader = self.args, super().get_train_dataloader()
        check_batch_size(self.session, args.per_device_train_batch_size, args.gradient_accumulation_steps)
        rows = PassRows(
            loader.dataset,
            shuffles(self._get_train_sampler(loader.dataset), len(loader.dataset)),
            loader.collate_fn,
            args.dataloader_num_workers,
            args.dataloader_drop_last,
            clips="TrainingArguments(max_grad_norm=1.0)",
        )
        return StepLoader(self.session, rows, args.gradient_accumulation_steps)

    def get_total_train_batch_size(self, args: Any) -> int:
        """The job's global batch."""
        return self.session._spec.batch.global_size

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: "StepLoader", resume_from_checkpoint: Any
    ) -> tuple[nn.Module, "StepLoader"]:
        """Register everything with the session."""
        if resume_from_checkpoint is not None:
            refuse(
                "train(resume_from_checkpoint=…)",
                "Leave it out: a later attempt of the job goes on by itself; init_from: in the job file begins with "
                "the weights of another job, or of a file.",
            )
        if not self._registered:
            self.session.model(self.model)
        prepared: tuple[nn.Module, StepLoader] = super()._prepare_for_training(
            max_steps, train_dataloader, None
        )
        self.session.optimizer(self.optimizer.optimizer, clip_norm=self.args.max_grad_norm or None)
        if not isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau | GreedyLR):
            self.session.scheduler(self.lr_scheduler)
        self.progress.begin()
        if not self._registered:
            self.session.keep("transformers.progress", self.progress)
            self.session.keep("transformers.history", LogHistory(self))
            self.session.on_commit(StepEnd(self))
        self._registered = True
        self.session._loops.expect(max_steps)
        return prepared

    def _run_epoch(self, model: nn.Module, epoch: int, train_dataloader: "StepLoader", **others: Any) -> None:
        """One pass: the session's loop, and what comes behind it."""
        self.progress.epoch_begins(epoch, others)
        model.train()  # the modes that each slice begins with
        steps = SessionSteps(self.session, train_dataloader.rows)
        self._looping = True
        try:
            self._run_steps(model, steps)
        finally:
            self._looping = False
            steps.close()
        self._record_logs()
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        self._log_and_evaluate()

    def _run_steps(self, model: nn.Module, steps: SessionSteps) -> None:
        for slices in steps:
            self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
            for inputs in slices:
                self.training_step(model, inputs)
            self._record_logs()
            if self.control.should_epoch_stop or self.control.should_training_stop:
                return

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One slice: forward, and `session.step`, weighted by the labels that count."""
        model.train()
        inputs = self._prepare_inputs(inputs)
        items = self._items(inputs)
        # Of one slice, so that a slice without any has a loss of 0, and not of 0 / 0.
        most = None if items is None else torch.tensor(max(items, 1), device=self.args.device)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=most)
        weight = None if items is None else items or NO_ITEMS
        self.session.step(loss, weight=weight, **self.slice_metrics())
        detached: Tensor = loss.detach()
        return detached

    def slice_metrics(self) -> dict[str, float]:
        """What was measured in the slice beside its loss, by the same names in each: means are recorded."""
        return {}

    def _items(self, inputs: Any) -> int | None:
        """The labels of a slice that count; None where its loss is a mean over rows."""
        items = self._get_num_items_in_batch([inputs], self.args.device)
        if items is None and self.label_smoother is not None and "labels" in inputs:
            labels = inputs["labels"]
            items = (labels[..., 1:] if self._loss_shifts_labels else labels).ne(-100).sum()
        return None if items is None else int(items)

    # --- what the trainer does once a step, or behind an epoch -------------------------------------------------------

    def end_step(self) -> None:
        """What follows a committed step, on every member."""
        self.progress.count_step()
        self.control._new_step()
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        self._log_and_evaluate()
        self.progress.next_rate()

    def _log_and_evaluate(self) -> None:
        progress = self.progress
        super()._maybe_log_save_evaluate(
            self._tr_loss,
            None,
            self.model,
            None,
            progress.epoch,
            progress.ignored_keys,
            progress.since,
            learning_rate=progress.rate,
        )

    def _evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
        if self._looping:
            refuse(
                "an evaluation inside of an epoch (control.should_evaluate)",
                "Evaluate at the end of epochs: eval_strategy='epoch'.",
            )
        metrics: dict[str, float] = super()._evaluate(*given, **named)
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """As the trainer's; the best weights are kept with the session, in place of a folder."""
        best: bool = super()._determine_best_metric(metrics, trial)
        if best and self.args.load_best_model_at_end:
            self.session.best(self.model, self.state.best_metric, lowest=not self.args.greater_is_better)
        return best

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Nothing: the job's checkpoints have it all."""
        self.session._member.warnings.add(
            "transformers",
            f"save_strategy={self.args.save_strategy.value!r} writes no checkpoint-… folders in a job.",
            "The job's checkpoints hold models, optimizers and the trainer's state (checkpoint: in the job file); "
            "write save_strategy='no', and trainer.save_model(folder) after train().",
        )

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        if self.args.load_best_model_at_end and self.state.best_metric is not None:
            self.session.load_best(self.model)
        return super()._finalize_training(trial, num_train_samples, start_time)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the trainer does, and record the numbers at the newest step; its loss is there already."""
        super().log(logs, start_time)
        self._to_record |= {
            n: float(v) for n, v in logs.items() if isinstance(v, int | float) and n != "loss"
        }
        if not self._looping:
            self._record_logs()
        if not self._looping or self.session.is_main:
            print({name: f"{v:.4g}" if isinstance(v, float) else v for name, v in logs.items()})

    def _record_logs(self) -> None:
        record(self.session, self._to_record)
        self._to_record = {}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, on one worker."""
        if self.session.is_main:
            super().save_model(output_dir, _internal_call)

    def hyperparameter_search(self, *given: Any, **named: Any) -> NoReturn:
        refuse("hyperparameter_search", "Submit a job for each trial.")


class StepLoader:
    """The rows of one pass as the trainer counts them.

    Attributes:
        rows, dataset: what is read.
    """

    def __init__(self, session: Session, rows: PassRows, accumulation: int) -> None:
        self.rows, self.dataset = rows, rows.dataset
        self.batch_sampler = None
        self._batches = rows.steps(session) * accumulation

    def __len__(self) -> int:
        """Batches of all shards: the trainer divides them by those that it accumulates."""
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        refuse("a loop over trainer.get_train_dataloader()", "Call trainer.train().")
