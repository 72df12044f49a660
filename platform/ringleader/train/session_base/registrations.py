"""What a training function gives to its session: the objects whose state is committed, and callbacks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.spec import JobSpec
from ringleader.train.best_weights import best_of
from ringleader.train.body.body_checks import BodyChecks
from ringleader.train.call_sequence import CallSequence
from ringleader.train.device.compiled_forward import compile_forward
from ringleader.train.generation.member import Member
from ringleader.train.session_base.artifacts import SessionArtifacts
from ringleader.train.session_base.averaged_weights import NAME, AveragedWeights, averaged
from ringleader.train.state.kept_objects import Stateful
from ringleader.train.state.recomputation import NONE, check_compiled_blocks, recompute_in
from ringleader.train.state.registration import (
    KeptNames,
    check_clipping,
    check_kept,
    check_model,
    check_optimizer,
    check_scheduler,
)

M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=Optimizer)  # noqa: E741
S = TypeVar("S", bound=LRScheduler)
K = TypeVar("K", bound=Stateful)


class Registrations(SessionArtifacts):
    """The part of a session that registers."""

    def __init__(
        self, spec: JobSpec, device: torch.device, member: Member, calls: CallSequence, checks: BodyChecks
    ) -> None:
        self._spec = spec
        self._device = device
        self._member = member
        self._held = member.held
        self._calls = calls
        self._checks = checks
        self._kept_names = KeptNames()

    def model(self, model: M, *, compile: bool = False, recompute: str | Sequence[str] = NONE) -> M:
        """Register a model: its parameters are kept in step, its buffers are those that the first shard leaves.

        Where the job has `init_from`, the model has those weights when this returns, on every worker alike.

        Args:
            compile: by torch.compile, forward and backward, for each shape of inputs by itself, 64 at most; names of
                weights stay. Its bits are other ones than without, and the same through kills and resizes on nodes of
                one kind. Copies of the model are not compiled.
            recompute: submodules whose activations are computed once more in the backward instead of being kept: their
                names, `auto` for repeated blocks, or `none`. With the bits and draws of the model without.

        Raises:
            StepMisuse: it is no model; there is no such submodule; this node has no C++ compiler.
        """
        self._calls.check_first("model")
        check_model(model)
        blocks = recompute_in(model, recompute)
        if compile:
            check_compiled_blocks(model, blocks)
            self._held.compiled.append(compile_forward(model, self._device))
        self._held.models.append(model.to(self._device))
        self._member.beginning.give(model)
        return model

    def optimizer(self, optimizer: O, *, clip_norm: float | None = None) -> O:
        """Register an optimizer; the session steps it. `clip_norm` bounds the 2-norm of its whole gradient.

        Between two loops another one may take the place of those whose parameters it has, in a ring, on synchronous
        servers and with local SGD.

        Raises:
            StepMisuse: for `clip_norm` with several `ssp` servers, unless each holds everything; for an optimizer that
                has some parameters of another one.
        """
        self._calls.check_between("optimizer")
        check_optimizer(optimizer)
        check_clipping(self._member.rules, clip_norm)
        self._held.add_optimizer(optimizer, clip_norm)
        self._checks.optimizer(optimizer)
        return optimizer

    def scheduler(self, scheduler: S) -> S:
        """Register a learning-rate schedule; the session steps it once per committed step, and nobody else does.

        Raises:
            StepMisuse: it is none, or takes a metric at each step, as ReduceLROnPlateau does.
        """
        self._calls.check_between("scheduler")
        check_scheduler(scheduler)
        self._held.add_scheduler(scheduler)
        return scheduler

    def keep(self, name: str, kept: K) -> K:
        """Register an object with state_dict/load_state_dict: rolled back on replay, healed with the weights.

        Returns:
            the object.

        Raises:
            StepMisuse: it has no such methods, or another object was given that name, with no loop and no evaluation
                between.
        """
        self._keep("keep", name, kept)
        return kept

    def best(self, model: nn.Module, score: float, *, lowest: bool = False) -> bool:
        """Keep a copy of the model's weights if `score` is the best so far: committed state, healed and checkpointed.

        Call it between two loops, or behind a step of `steps`, with a score that is equal everywhere; `load_best` gives
        the weights back.

        Args:
            lowest: a smaller score is better.

        Returns:
            whether it was the best.
        """
        best, weights = best_of(self._held.kept, partial(self._keep, "best"))
        if not best.improves(float(score), lowest=lowest):
            return False
        # Watched reads would record all weights at this boundary; the copy ends up in committed state anyway.
        with self._member.sections.unwatched():
            weights.keep(model)
        return True

    def load_best(self, model: nn.Module) -> None:
        """Give the model the weights that `best` kept.

        Raises:
            StepMisuse: it kept none.
        """
        best_of(self._held.kept, partial(self._keep, "load_best"))[1].put_back(model)

    def ema(self, model: nn.Module, decay: float) -> AveragedWeights:
        """Keep an exponential moving average of a registered model's weights, updated once per committed step.

        It is committed state, healed and checkpointed, with the same bits on all workers. It is called like the model,
        in a score function for example:
        `session.evaluate(test_set, lambda batch: score(average(batch[0]), batch[1]))`. `average.load_into(net)` at the
        end gives the model, whose weights are exported, the averages. With local SGD a round's steps all move it
        towards the weights at the round's end.

        Args:
            decay: the share of the old average that stays: average + (1 - decay) * (weight - average).

        Raises:
            StepMisuse: the model is not registered, or `decay` is not from 0 to below 1.
        """
        average = averaged(model, decay, self._held.models)
        number = sum(name.startswith(NAME) for name in self._held.kept)
        self._keep("ema", f"{NAME}.{number}", average)
        self.on_commit(average.update)
        return average

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` once per committed step, on every worker, after the weights have changed.

        Where parameter servers publish the weights it may not change them: that fails the job, naming the parameter.
        """
        self._held.callbacks.append(callback)

    def _keep(self, call: str, name: str, kept: Stateful) -> None:
        """Register an object for `call`, which is what the program has called."""
        self._calls.check_between(call, first=False)
        check_kept(name, kept)
        given = self._held.kept.get(name, kept) is not kept
        self._kept_names.check(name, new=given, calls=self._member.progress.calls.next)
        self._held.kept[name] = kept
