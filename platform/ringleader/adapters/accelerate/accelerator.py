"""Loops written for Accelerate on a session: `Accelerator()` becomes `ElasticAccelerator(session)`.

Each logical shard counts as a process: `num_processes` is their number, whatever the number of workers. A turn of a
prepared loader is one slice, `backward` ends it, and the update comes with the last slice of a step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.adapters.accelerate.prepared_objects import (
    PreparedOptimizer,
    PreparedScheduler,
    ScheduleByProcess,
)
from ringleader.adapters.library import needed
from ringleader.adapters.loop_turns import LoopTurn, PreparedLoader, check_clip_norm
from ringleader.adapters.session_loop import record, refuse
from ringleader.errors import StepMisuse
from ringleader.train import Session

with needed("accelerate", "accelerate"):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, DistributedType

LOG_FIRST = (
    "Call accelerator.log before accelerator.backward(loss), in every turn: what is recorded is the mean over all "
    "rows of the step. The loss is recorded by itself, and accelerator.loss is that of all rows."
)


class RefusedCalls:
    """The calls of an `Accelerator` that a session does in another way, or cannot do: each says what to write."""

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> NoReturn:
        refuse(
            "clip_grad_value_",
            f"Write at the top: for p in model.parameters(): "
            f"p.register_hook(lambda g: g.clamp(-{clip_value}, {clip_value})).",
        )

    def save_state(self, output_dir: Any = None, **others: Any) -> NoReturn:
        refuse(
            "save_state",
            "The job's checkpoints hold models, optimizers, schedules, registered objects and the place in the data: "
            "checkpoint: {every_steps: 500} in the job file. For weights alone there is accelerator.save_model "
            "between loops, and ringleader export.",
        )

    def load_state(self, input_dir: Any = None, **others: Any) -> NoReturn:
        refuse(
            "load_state",
            "A later attempt of the job goes on from its newest checkpoint by itself; init_from: JOB in the job file "
            "begins with another job's weights.",
        )

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> NoReturn:
        refuse("skip_first_batches", "Leave the line out: a later attempt goes on at the step where it was.")

    def set_trigger(self) -> NoReturn:
        refuse("set_trigger", "End a loop for all workers by session.stop(), by what accelerator.loss says.")


class ElasticAccelerator(RefusedCalls, Accelerator):  # type: ignore[misc]
    """Accelerate's `Accelerator` on a session: loops written for it keep the session's guarantees.

    Args:
        clip_norm: the bound that the loop gives to `clip_grad_norm_`: gradients are whole where the session has them.
        gradient_accumulation_steps: batches of a loader that make a step; a turn has the rows of all of them.
        dataloader_config: of it `split_batches` counts: a loader's batch is that of all processes together.
        step_scheduler_with_optimizer: prepared schedules advance with each step, once for each process unless batches
            are split, as Accelerate's do. Without it a schedule is left alone: step it between loops.

    Raises:
        StepMisuse: for anything else that an `Accelerator` takes, by name.
    """

    declared = "ElasticAccelerator(session, clip_norm={norm:g})"

    def __init__(
        self,
        session: Session,
        *,
        clip_norm: float | None = None,
        gradient_accumulation_steps: int = 1,
        dataloader_config: DataLoaderConfiguration | None = None,
        step_scheduler_with_optimizer: bool = True,
        **others: Any,
    ) -> None:
        _refuse_options(others, dataloader_config)
        self.session = session
        self.turn = LoopTurn(session)
        self.clip_norm = clip_norm
        self.trained: list[nn.Module] = []
        self._last_objects = 0
        super().__init__(
            cpu=session.device.type == "cpu",
            gradient_accumulation_steps=gradient_accumulation_steps,
            dataloader_config=dataloader_config,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
        )
        if self.state.distributed_type != DistributedType.NO or self.state.mixed_precision != "no":
            raise StepMisuse(
                f"Accelerate is set up for {self.state.distributed_type.value}, mixed precision "
                f"{self.state.mixed_precision}: by its own launcher, a configuration file or variables.",
                hint="Start the function as a job, without accelerate launch; precision: bf16 stands in the job file.",
            )

    # --- what the loop trains ----------------------------------------------------------------------------------------

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> "PreparedLoader":
        """A loader whose loops are the session's where the models train, and plain ones where they evaluate."""
        loader = PreparedLoader(self, data_loader)
        self._dataloaders.append(loader)
        return loader

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Register a model; one for evaluation only is moved to the device."""
        if evaluation_mode:
            return model.to(self.device)
        self.trained.append(self.session.model(model))
        self._models.append(model)
        return model

    def prepare_optimizer(
        self, optimizer: Optimizer, device_placement: bool | None = None
    ) -> "PreparedOptimizer":
        """Register an optimizer; the loop's `step` and `zero_grad` are the session's."""
        self.session.optimizer(optimizer, clip_norm=self.clip_norm)
        prepared = PreparedOptimizer(optimizer, self.turn)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: LRScheduler) -> Any:
        """Register a schedule that advances with the steps."""
        if not self.step_scheduler_with_optimizer:
            return scheduler
        once = self.num_processes == 1 or self.split_batches
        advanced: Any = scheduler if once else ScheduleByProcess(scheduler, self.num_processes)
        self.session.scheduler(advanced)
        prepared = PreparedScheduler(scheduler, self._optimizers, self.turn)
        self._schedulers.append(prepared)
        return prepared

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Keep objects with the weights: rolled back, healed and checkpointed with them."""
        for kept in objects:
            self.session.keep(f"accelerate.{self._last_objects}", kept)
            self._last_objects += 1

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Nothing of its own: the session adds the gradients of a step's slices."""
        yield

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Nothing of its own: see `accumulate`."""
        yield

    def backward(self, loss: Tensor, *, weight: float | None = None, **others: Any) -> None:
        """End the turn: `session.step(loss)`, with what `log` was given in it.

        Args:
            loss: () the mean loss of the turn's rows, not divided by anything.
            weight: how much the turn counts, its rows by default (tokens, for example).
        """
        if others:
            refuse(
                f"backward({', '.join(others)}=…)", "Call backward(loss) once in a turn, of all losses added."
            )
        self.turn.step(loss, weight)

    @property
    def sync_gradients(self) -> bool:
        """Whether the turn's backward has ended a step, with its update."""
        return self.turn.committed or not self.turn.inside

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """False: a step whose gradient overflows is counted by the session, as the metric `skipped_updates`."""
        return False

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> None:
        """Check that the norm is the declared one: the session clips by it. Returns nothing: the norm is not known yet
        where a turn ends."""
        check_clip_norm(self, max_norm, norm_type, parameters, self._optimizers)

    # --- what all workers know ---------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The session's."""
        return self.session.device

    @property
    def num_processes(self) -> int:
        """The number of logical shards."""
        return self.session._spec.shards

    @property
    def loss(self) -> float | None:
        """The mean loss of the newest step over all rows; None before the first."""
        return self.session.loss

    @property
    def is_main_process(self) -> bool:
        """Whether this worker prints and saves for all; decide nothing else by it, least of all a loop or a prepared
        object."""
        return self.session.is_main

    @property
    def is_local_main_process(self) -> bool:
        """As `is_main_process`."""
        return self.is_main_process

    @property
    def is_last_process(self) -> bool:
        """As `is_main_process`."""
        return self.is_main_process

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Run a function where `is_main_process` is true."""
        return lambda *given, **named: function(*given, **named) if self.is_main_process else None

    on_local_main_process = on_main_process

    def gather(self, tensor: Any) -> Any:
        """As `gather_for_metrics`."""
        return self.gather_for_metrics(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """The values themselves: an evaluation loop goes over all rows on every worker."""
        return self._of_all("gather", input_data)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The values themselves, scaled: as `gather_for_metrics`."""
        values = self._of_all("reduce", tensor)
        return values if scale == 1.0 else values * scale

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """The values themselves: there is nobody else's to be as long as."""
        return self._of_all("pad_across_processes", tensor)

    def print(self, *given: Any, **named: Any) -> None:
        """Print once: between loops lines are recorded once whoever prints them, in loops the main process prints."""
        if not self.turn.looping or self.is_main_process:
            print(*given, **named)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        """Record numbers at the newest step; in a loop, before `backward`, their means over all rows of the step.

        Args:
            step: not used: records are by `session.global_step`.
        """
        if not self.turn.looping:
            record(self.session, {name: float(value) for name, value in values.items() if _is_number(value)})
        elif self.turn.ended:
            refuse("accelerator.log after backward() in a loop", LOG_FIRST)
        else:
            self.turn.note({name: value for name, value in values.items() if _is_number(value)})

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Save on the main process."""
        if self.is_main_process:
            super().save(obj, f, safe_serialization=safe_serialization)

    def unwrap_model(self, model: nn.Module, *given: Any, **named: Any) -> nn.Module:
        """The model itself: nothing wraps it."""
        return model

    def _of_all(self, what: str, values: Any) -> Any:
        if self.turn.looping:
            refuse(
                f"{what} in a training loop",
                "A turn has one slice of the batch, and other workers are not at theirs at the same time. "
                + LOG_FIRST,
            )
        return values


def _refuse_options(others: dict[str, Any], config: DataLoaderConfiguration | None) -> None:
    for name, value in others.items():
        if name == "mixed_precision" and value in (None, "no"):
            continue
        hint = {
            "mixed_precision": "Write precision: bf16 (or fp16) in the job file.",
            "log_with": "Leave it out: what log is given is in ringleader metrics, on the page and in MLflow.",
        }.get(name, "Leave it out: the session does what it is for, or cannot keep it.")
        refuse(f"ElasticAccelerator({name}=…)", hint)
    if config is not None and (config.dispatch_batches or config.use_stateful_dataloader):
        refuse(
            "dispatch_batches and use_stateful_dataloader",
            "Leave them out: the session knows each row's place.",
        )


def _is_number(value: Any) -> bool:
    """Whether it is one number; trackers take texts too, records do not."""
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
