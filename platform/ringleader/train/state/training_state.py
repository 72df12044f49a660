"""Everything a step commits: models, optimizers, schedulers, kept objects and callbacks."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ringleader.comm.buckets import drop_gradients
from ringleader.errors import StepMisuse
from ringleader.train.device.compiled_calls import CompiledCalls
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.state.kept_objects import KeptObjects
from ringleader.train.state.norms import BLOCK, Complete, block_sums, clip, itself, together
from ringleader.train.state.optimizers.own_attributes import OwnAttributes
from ringleader.train.state.optimizers.schedules import LearningRates, advance, stepped, take
from ringleader.train.state.optimizers.state_loading import assign, of_another_kind
from ringleader.train.state.parameters.sparse import step
from ringleader.train.state.parameters.tensor_version import version_of


class TrainingState:
    """The registered objects, in the order the training function registered them.

    Attributes:
        compiled: the calls of those models that are compiled.
        replaced: the optimizers in whose place others are registered now.
        attributes: what optimizers keep outside of their states.
        norm: of the whole gradient of the newest update, before it was clipped: (); None where not all of it is.
        rates: the learning rates of the newest updates.
        owed: the seed and the step of callbacks that wait for `call_back`; None where none do.
        idle: parameters that are not trained now, see `TrainedParameters`: nobody updates or publishes them.
        left: the program is behind its last loop, where it may change the models' structure.
    """

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.compiled: list[CompiledCalls] = []
        self.optimizers: list[tuple[Optimizer, float | None]] = []
        self.schedulers: list[LRScheduler] = []
        # Weak: a program that makes one anew in each epoch would keep the states of all.
        self.replaced: WeakSet[Optimizer] = WeakSet()
        self.kept = KeptObjects()
        self.attributes = OwnAttributes(lambda: self.named_parameters)
        self.callbacks: list[Callable[[], None]] = []
        self.idle: frozenset[nn.Parameter] = frozenset()
        self._calling: Callable[..., AbstractContextManager[None]] = nullcontext
        self._stepping: Callable[[Optimizer], AbstractContextManager[Any]] = nullcontext
        self.norm: Tensor | None = None
        self.rates = LearningRates()
        self.owed: tuple[int, int] | None = None
        self.left = False

    def leave(self) -> None:
        """Leave the models' structure to the program, which is behind its last loop."""
        self.left = True

    def add_scheduler(self, scheduler: LRScheduler) -> None:
        note_stepped(scheduler.optimizer)
        take(scheduler)
        self.schedulers.append(scheduler)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Every parameter once, in registration order, frozen ones too."""
        return list(self.named_parameters.values())

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter under the number of its model and its name there."""
        # A parameter that several models share counts once, under its first name.
        seen: dict[int, tuple[str, nn.Parameter]] = {}
        for number, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                seen.setdefault(id(parameter), (f"{number}.{name}", parameter))
        return dict(seen.values())

    @property
    def spoken_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter under the name that the user knows: without the number where there is one model."""
        named = self.named_parameters
        return {n.partition(".")[2]: p for n, p in named.items()} if len(self.models) == 1 else named

    def optimized_names(self) -> list[list[str]]:
        """By optimizer, the names of its parameters under the number of their model, in the order of its state dict;
        empty for a parameter of no model."""
        names = {id(parameter): name for name, parameter in self.named_parameters.items()}
        return [
            [names.get(id(p), "") for group in optimizer.param_groups for p in group["params"]]
            for optimizer, _ in self.optimizers
        ]

    def check_covered(self) -> None:
        """Check that all that the optimizers are to train belongs to a model. Raises StepMisuse: it does not."""
        if not self.optimizers:
            raise StepMisuse(
                "no optimizer is registered.", hint="Call session.optimizer(...) before the first loop."
            )
        known = {id(p) for p in self.weights}
        groups = (group["params"] for optimizer, _ in self.optimizers for group in optimizer.param_groups)
        strangers = sum(p.requires_grad and id(p) not in known for params in groups for p in params)
        if strangers:
            raise StepMisuse(
                f"{strangers} trainable parameters of the optimizers belong to no registered model.",
                hint="Register every model with session.model(...). A tensor of your own becomes one by "
                'session.model(nn.ParameterDict({"alpha": tensor}))["alpha"].',
            )

    @property
    def module(self) -> nn.Module:
        """The model, or all of them under their number."""
        if not self.models:
            raise StepMisuse("no model is registered.", hint="Call session.model(net) before the first loop.")
        return self.models[0] if len(self.models) == 1 else nn.ModuleList(self.models)

    def update(
        self, complete: Complete = itself, *, applied: bool = False, only: Collection[int] | None = None
    ) -> None:
        """Clip and step the optimizers; parameters whose `.grad` is None are left alone.

        Args:
            only: the numbers of those that step; None: all.
            complete: turns the block sums over the gradients that are here into those of the whole norm.
            applied: this update has been made; the others still need this member's part of the norm.
        """
        stepping = [each for n, each in enumerate(self.optimizers) if only is None or n in only]
        # All that can break comes before anything that changes a weight.
        norms = [clip(self._clipped(each), norm, complete) for each, norm in stepping if norm is not None]
        self.norm = together(norms) if len(norms) == len(stepping) else None
        for optimizer, _ in stepping:
            if not applied:
                with self._stepping(optimizer):
                    step(optimizer, lambda: self.spoken_parameters)

    def settings(self) -> list[dict[str, Any]]:
        """A copy of every parameter group of every optimizer, without the parameters."""
        return [
            copy.deepcopy({key: value for key, value in group.items() if key != "params"})
            for optimizer, _ in self.optimizers
            for group in optimizer.param_groups
        ]

    def set(self, settings: Sequence[dict[str, Any]]) -> None:
        """Take over a peer's `settings`."""
        groups = [group for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        for group, given in zip(groups, settings, strict=True):
            assign(group, given)

    def knows(self, settings: Sequence[dict[str, Any]], kept: Mapping[str, Any]) -> bool:
        """Whether a peer's settings and kept states are for objects that are registered here too."""
        groups = [(optimizer, group) for optimizer, _ in self.optimizers for group in optimizer.param_groups]
        alike = len(groups) == len(settings) and kept.keys() <= self.kept.keys()
        return alike and not any(
            of_another_kind(optimizer, group, given)
            for (optimizer, group), given in zip(groups, settings, strict=True)
        )

    @property
    def weights(self) -> list[nn.Parameter]:
        """Every parameter, frozen ones too."""
        return [parameter for model in self.models for parameter in model.parameters()]

    @property
    def block_count(self) -> int:
        """The number of `norm_blocks`."""
        clipped = [optimizer for optimizer, clip_norm in self.optimizers if clip_norm is not None]
        return sum(-(-p.numel() // BLOCK) for optimizer in clipped for p in self._clipped(optimizer))

    def norm_blocks(self) -> list[Tensor]:
        """1-D float64 sums of squares, for every block of every norm that clips, over the gradients that are here."""
        return [
            blocks
            for optimizer, clip_norm in self.optimizers
            if clip_norm is not None
            for blocks in block_sums(self._clipped(optimizer))
        ]

    def set_idle(self, parameters: Iterable[nn.Parameter]) -> None:
        """Have nobody update these parameters, nor publish them."""
        self.idle = frozenset(parameters)

    def forget_gradients(self) -> None:
        """Set every `.grad` to None."""
        drop_gradients(self.weights)

    def ever_trained(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Those of the parameters that are trained, or that an optimizer still has a state of."""
        return [p for p in parameters if p not in self.idle or any(p in o.state for o, _ in self.optimizers)]

    def _clipped(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """The parameters of an optimizer whose gradients count in its norm."""
        return [p for group in optimizer.param_groups for p in group["params"] if p not in self.idle]

    def run_within(
        self,
        stepping: Callable[[Optimizer], AbstractContextManager[None]],
        calling: Callable[[Callable[[], None]], AbstractContextManager[None]],
    ) -> None:
        """Make each optimizer's step, and run each callback of the program, within the context given for it."""
        self._stepping, self._calling = stepping, calling

    def after_update(
        self, seed: int, step: int, *, published: bool = False, skipped: bool = False, later: bool = False
    ) -> None:
        """Advance schedules and run callbacks, once per committed step on every member.

        Args:
            seed, step: callbacks' draws follow from them, not from what the update drew here.
            published: the weights here come from servers, which ran the callbacks themselves.
            skipped: no optimizer made a step, so schedules make none either.
            later: only a part of the weights is here until all have published: callbacks wait for `call_back`.

        Raises:
            StepMisuse: a callback changed such weights.
        """
        self.rates.add(step, (optimizer for optimizer, _ in self.optimizers))
        # torch warns of a schedule that steps before its optimizer, which an overflow at the start would bring about.
        for scheduler in () if skipped else stepped(self.schedulers, self.replaced):
            advance(scheduler)
        self.owed = (seed, step)
        if later:
            # What lines before the update made of them is of this step, whatever becomes of the publication.
            self.kept.commit()
        else:
            self.call_back(published=published)

    def call_back(self, *, published: bool = False) -> None:
        """Run the callbacks of the newest committed step, unless they have run. Otherwise as `after_update`."""
        owed, self.owed = self.owed, None
        if owed is None:
            return
        if self.callbacks:
            seed_all(owed[0], "commit", owed[1])
        named = self.spoken_parameters if published and self.callbacks else {}
        before = {name: (p, version_of(p)) for name, p in named.items() if p not in self.idle}
        for callback in self.callbacks:
            with self._calling(callback):
                callback()
        changed = [name for name, (parameter, version) in before.items() if version_of(parameter) != version]
        if changed:
            raise StepMisuse(
                f"an on_commit callback changed {changed[0]}, which the parameter servers own.",
                hint="Change weights in a custom optimizer, or use sync: ring.",
            )
        self.kept.commit()

    def owe_callbacks(self, owed: tuple[int, int] | None) -> None:
        """Have a peer's callbacks wait here as they do there, with its state; None: the step that the own ones follow
        is not this member's any more."""
        self.owed = owed

    def add_optimizer(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        """Register an optimizer; it takes the place of all others whose parameters it has.

        Raises:
            StepMisuse: it has only some of another one's.
        """
        former = _former(optimizer, [other for other, _ in self.optimizers])
        self.attributes.add(optimizer)
        self.replaced.update(self.optimizers[number][0] for number in former)
        # One that comes back is in use again, and so are its schedules.
        self.replaced.discard(optimizer)
        for number in former[1:]:
            # The others keep their numbers, by which states are healed and saved.
            self.optimizers[number] = (SGD([{"params": []}], lr=0.0), None)
        if former:
            self.optimizers[former[0]] = (optimizer, clip_norm)
        else:
            self.optimizers.append((optimizer, clip_norm))


def _former(optimizer: Optimizer, others: Sequence[Optimizer]) -> list[int]:
    """The numbers of the others whose parameters it has. Raises StepMisuse: it has only some of another one's."""
    mine = _parameters(optimizer)
    owned = [_parameters(other) for other in others]
    if any(theirs & mine and not theirs <= mine for theirs in owned):
        raise StepMisuse(
            "an optimizer was registered for some, but not all, parameters of an earlier one.",
            hint="Give it all parameters of the earlier one, which it then replaces, or none of them.",
        )
    return [number for number, theirs in enumerate(owned) if theirs & mine]


def _parameters(optimizer: Optimizer) -> set[nn.Parameter]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def note_stepped(optimizer: Optimizer) -> None:
    """Note that it has made steps, whoever made them: the program's lines may step its schedules."""
    # What torch looks at to warn of a schedule that is stepped before its optimizer. It knows of no update that
    # others made: a joiner's own optimizer may never have stepped, nor that of a worker where servers step.
    optimizer._opt_called = True  # type: ignore[attr-defined]
