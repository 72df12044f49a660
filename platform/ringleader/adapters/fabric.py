"""Lightning's Fabric on a session: `Fabric(strategy=RingleaderStrategy(session))`.

The loop stays the user's own: a turn of a loader that `setup_dataloaders` has prepared is one slice, `fabric.backward`
ends it, and the update comes with the last slice of a step. Each logical shard counts as a process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.adapters.library import needed
from ringleader.adapters.loop_turns import LoopTurn, PreparedLoader, check_clip_norm
from ringleader.adapters.session_loop import check_no_process_group, refuse
from ringleader.train import Session

with needed("lightning", "lightning"):
    from lightning.fabric.accelerators import CPUAccelerator, CUDAAccelerator
    from lightning.fabric.strategies import SingleDeviceStrategy
    from lightning.fabric.strategies.strategy import _BackwardSyncControl

_OF_TORCH = frozenset(["gradient", "retain_graph", "create_graph", "inputs"])


class RingleaderStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """The strategy by which loops written for Fabric keep the session's guarantees.

    Args:
        clip_norm: the bound that the loop gives to `fabric.clip_gradients(max_norm=…)`.
        gradient_accumulation_steps: batches of a loader that make a step; a turn has the rows of all of them.
    """

    declared = "RingleaderStrategy(session, clip_norm={norm:g})"
    split_batches = False

    def __init__(
        self, session: Session, *, clip_norm: float | None = None, gradient_accumulation_steps: int = 1
    ) -> None:
        check_no_process_group("Start the function as a job, without fabric run or torchrun.")
        on_gpu = session.device.type == "cuda"
        super().__init__(session.device, accelerator=CUDAAccelerator() if on_gpu else CPUAccelerator())
        self.session = session
        self.turn = LoopTurn(session)
        self.trained: list[nn.Module] = []
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.device = session.device
        self.world_size = self.num_processes = session._spec.shards
        self.clip_norm = clip_norm
        self._optimizers: list[Optimizer] = []
        self._backward_sync_control = _NoSynchronization()

    # --- what the loop trains ----------------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Register a model."""
        if self.precision.precision != "32-true":
            refuse(
                f"Fabric(precision={self.precision.precision!r})",
                "Write precision: bf16 (or fp16) in the job file.",
            )
        self.trained.append(self.session.model(module))
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Register an optimizer; the loop's `step` and `zero_grad` are the session's."""
        self.session.optimizer(optimizer, clip_norm=self.clip_norm)
        self._optimizers.append(optimizer)
        return _prepared(optimizer, self.turn)

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """Register all of them. A schedule advances with each step, as one that the loop steps does."""
        module = self.setup_module(module)
        optimizers = [self.setup_optimizer(optimizer) for optimizer in optimizers]
        if scheduler is not None:
            scheduler = StepSchedule(self.session.scheduler(scheduler), self.turn)
        return module, optimizers, scheduler

    def process_dataloader(self, dataloader: Any) -> PreparedLoader:
        """A loader whose loops are the session's where the models train, and plain ones where they evaluate."""
        return PreparedLoader(self, dataloader)

    # --- a turn ------------------------------------------------------------------------------------------------------

    def backward(
        self,
        tensor: Tensor,
        module: nn.Module | None,
        *given: Any,
        weight: float | None = None,
        **metrics: Any,
    ) -> None:
        """End the turn: `session.step(loss)`.

        Args:
            tensor: () the mean loss of the turn's rows, not divided by anything.
            weight: how much the turn counts, its rows by default (tokens, for example).
            metrics: numbers; their means over all rows of the step are recorded.
        """
        of_torch = sorted(_OF_TORCH & metrics.keys())
        if given or of_torch:
            refuse(
                f"fabric.backward({', '.join(of_torch) or 'loss, …'})",
                "Call fabric.backward(loss) once in a turn, of all losses added.",
            )
        self.turn.note(metrics)
        self.turn.step(tensor, weight)

    def optimizer_step(self, optimizer: Any, **named: Any) -> None:
        """Nothing: the session has stepped it with the step's last slice."""
        if not self.turn.looping:
            refuse("optimizer.step() outside of a loop over a prepared loader", "The session steps it.")
        self.turn.check_update(named.get("closure"))

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> None:
        """Check that the norm is the declared one: the session clips by it. Returns nothing: the norm is not known yet
        where a turn ends."""
        check_clip_norm(self, max_norm, norm_type, module.parameters(), self._optimizers)

    def clip_gradients_value(self, module: nn.Module, optimizer: Optimizer, clip_val: float) -> NoReturn:
        refuse(
            "clip_gradients(clip_val=…)",
            f"Write at the top: for p in model.parameters(): "
            f"p.register_hook(lambda g: g.clamp(-{clip_val}, {clip_val})).",
        )

    # --- what all workers know ---------------------------------------------------------------------------------------

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker prints and saves for all."""
        return self.session.is_main

    @property
    def local_rank(self) -> int:
        """0 where this worker prints: `fabric.print` goes by it. Lines between loops are recorded once whoever prints
        them."""
        return int(self.turn.looping and not self.is_global_zero)

    @local_rank.setter
    def local_rank(self, rank: int) -> None:
        """Nothing: workers have no ranks here."""

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensor itself: an evaluation loop goes over all rows on every worker."""
        return self._of_all("all_gather", tensor)

    def all_reduce(self, tensor: Tensor, group: Any = None, reduce_op: Any = "mean") -> Tensor:
        """The tensor itself: as `all_gather`."""
        return self._of_all("all_reduce", tensor)

    def _of_all(self, what: str, tensor: Tensor) -> Tensor:
        if self.turn.looping:
            refuse(
                f"{what} in a training loop",
                "A turn has one slice of the batch, and other workers are not at theirs at the same time. For a mean "
                "over all rows of the step write fabric.backward(loss, accuracy=accuracy); session.loss is the loss.",
            )
        return tensor

    def load_checkpoint(self, path: Any, *given: Any, **named: Any) -> NoReturn:
        """Refused: a session has other ways."""
        refuse(
            f"fabric.load({str(path)!r})",
            "A later attempt of the job goes on from its newest checkpoint by itself; init_from: in the job file "
            "begins with the weights of another job, or of a file.",
        )


def _prepared(optimizer: Optimizer, turn: LoopTurn) -> Optimizer:
    """The optimizer as Fabric wraps it: its class is what the loop's `zero_grad` is looked up in."""
    clear = optimizer.zero_grad

    class Prepared(type(optimizer)):  # type: ignore[misc]
        def zero_grad(self, set_to_none: bool = True) -> None:
            if not turn.looping:  # in a loop each slice's gradient begins at zero
                clear(set_to_none)

    prepared: Optimizer = object.__new__(Prepared)
    prepared.__dict__ = vars(optimizer)  # one state: what the session sets in the one is in the other
    return prepared


class StepSchedule:
    """A registered schedule as the loop sees it."""

    def __init__(self, schedule: Any, turn: LoopTurn) -> None:
        self._schedule = schedule
        self._turn = turn
        self.optimizer = schedule.optimizer
        self.state_dict, self.get_last_lr = schedule.state_dict, schedule.get_last_lr

    def step(self, *given: Any, **named: Any) -> None:
        """Nothing: the session advances it with each step."""
        if not self._turn.looping:
            refuse(
                "scheduler.step() between loops of a schedule that advances with each step",
                "For a schedule by epochs leave scheduler= of fabric.setup out, and step it between loops.",
            )
        self._turn.check_ended("scheduler.step()")


class _NoSynchronization(_BackwardSyncControl):  # type: ignore[misc]
    """What `fabric.no_backward_sync` does: nothing, the session adds the gradients of a step's slices."""

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        yield
