"""Loops of a user's own over a loader that a library has prepared: each turn is a slice, and `backward` ends it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ringleader.adapters.session_loop import PassRows, check_batch_size, refuse
from ringleader.train import Session


class PreparedLoop(Protocol):
    """What a loop's loader asks of the library's adapter.

    Attributes:
        session, device: the session, and where its batches are.
        turn: the turn that the program is in.
        trained: the registered models.
        num_processes: the number of logical shards.
        split_batches: a loader's batch is that of all processes together.
        gradient_accumulation_steps: batches that make a step.
        declared: what the program writes to have its gradients clipped, `{norm}` for the bound.
        clip_norm: the bound that it has written.
    """

    session: Session
    turn: "LoopTurn"
    trained: list[nn.Module]
    declared: str
    clip_norm: float | None

    @property
    def device(self) -> torch.device: ...
    @property
    def num_processes(self) -> int: ...
    @property
    def split_batches(self) -> bool: ...
    @property
    def gradient_accumulation_steps(self) -> int: ...


class LoopTurn:
    """The turn of a training loop that the program is in.

    Attributes:
        looping: a loop over the session's batches is under way.
        inside: a turn of it is.
        ended: its backward was called.
        committed: which committed a step.
        values: the metrics of the turn so far.
        clipped: the parameters that were found right where the program clips: see `check_clip_norm`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.looping = self.inside = self.ended = self.committed = False
        self.values: dict[str, Any] = {}
        self.clipped: list[tuple[int, bool]] = []

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The turns of one loop."""
        self.looping = True
        try:
            for batch in batches:
                self.inside, self.ended, self.committed, self.values = True, False, False, {}
                yield batch
        finally:
            self.looping = self.inside = False

    def note(self, values: Mapping[str, Any]) -> None:
        """Note metrics of the turn."""
        self.values.update(values)

    def step(self, loss: Tensor, weight: float | None) -> None:
        """End the turn. Raises StepMisuse: there is none."""
        if not self.inside:
            refuse(
                "backward() outside of a loop over a prepared loader whose models are in training mode",
                "Write model.train() before the loop, and call backward(loss) once for each batch.",
            )
        before = self._session.global_step
        self._session.step(loss, weight=weight, **self.values)
        self.ended, self.committed = True, self._session.global_step != before

    def check_ended(self, what: str) -> None:
        """Check that the turn's backward was called. Raises StepMisuse: `what` comes before it."""
        if not self.ended:
            refuse(
                f"{what} before backward()",
                "Call backward(loss) of the library once in each turn, before it.",
            )

    def check_update(self, closure: Any) -> None:
        """Check that `optimizer.step(closure)` comes behind the turn's backward. Raises StepMisuse: it does not, or has
        a closure."""
        if closure is not None:
            refuse("optimizer.step(closure)", "A step has one gradient: LBFGS and the like cannot be kept.")
        self.check_ended("optimizer.step()")


class PreparedLoader:
    """A loader of the program. Where a registered model is in training mode a loop over it is the session's; else it
    goes over all rows on every worker, for an evaluation.

    Attributes:
        dataset, collate_fn, sampler: the loader's.
    """

    def __init__(self, owner: PreparedLoop, loader: DataLoader[Any]) -> None:
        self._owner = owner
        self._loader = loader
        self._rows = PassRows.of_loader(loader, owner.declared.format(norm=1.0))
        self.dataset, self.collate_fn, self.sampler = loader.dataset, loader.collate_fn, loader.sampler

    @property
    def total_batch_size(self) -> int:
        """Rows of a batch of all processes together."""
        size = self._rows.batch_size or 1
        return size if self._owner.split_batches else size * self._owner.num_processes

    def __len__(self) -> int:
        """Batches of all processes together: steps, where none are accumulated."""
        return self._rows.batches(self.total_batch_size)

    def __iter__(self) -> Iterator[Any]:
        owner = self._owner
        if not torch.is_grad_enabled() or not any(model.training for model in owner.trained):
            return self._rows.whole(owner.session, self.total_batch_size)
        check_batch_size(
            owner.session,
            self._rows.batch_size or 1,
            owner.gradient_accumulation_steps,
            whole=owner.split_batches,
        )
        return owner.turn.of(iter(self._rows.turns(owner.session)))

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the order of rows follows from the job's seed and the number of the loop."""


def check_clip_norm(
    owner: PreparedLoop,
    asked: float,
    norm_type: float,
    parameters: Any,
    optimizers: Sequence[Optimizer],
) -> None:
    """Check that a program clips, in its loop, by what the session clips by: where a turn ends gradients are not whole.

    Args:
        owner: knows the declared bound.
        asked, norm_type, parameters: what is clipped in the loop.
        optimizers: the registered ones.

    Raises:
        StepMisuse: it does not.
    """
    written, clip_norm = owner.declared.format(norm=asked), owner.clip_norm
    if norm_type != 2:
        refuse(f"clipping by norm_type={norm_type}", f"Use the 2-norm: {written}.")
    if clip_norm is None or float(asked) != clip_norm:
        had = "no clip_norm" if clip_norm is None else f"clip_norm={clip_norm:g}"
        refuse(f"clipping by {asked:g} where {had} is declared", f"Write {written}.")
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    # Sets of tensors take longer than all else that a turn adds: they are made where anything is another one.
    now = [(id(p), p.requires_grad) for params in (given, *groups) for p in params]
    now += [(len(params), False) for params in groups]
    if now == owner.turn.clipped:
        return
    trained = [
        {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        for optimizer in optimizers
    ]
    if {p for p in given if p.requires_grad} not in trained:
        refuse(
            "clipping of other parameters than those of one prepared optimizer",
            "The session bounds the norm over all parameters of each optimizer: give it model.parameters().",
        )
    owner.turn.clipped = now
