"""The checks of objects that a program registers: one that a session cannot use is refused."""

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ringleader.errors import StepMisuse
from ringleader.program_text.current_line import running_place
from ringleader.train.modes.mode_rules import ModeRules


def check_model(model: Any) -> None:
    """Check that it is a torch module whose parameters and buffers have shapes. Raises StepMisuse."""
    if not isinstance(model, nn.Module):
        raise StepMisuse(
            f"session.model got a {type(model).__name__}, which is not a torch.nn.Module.",
            hint="Write net = session.model(net), with the module that the loop calls.",
        )
    tensors = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        raise StepMisuse(
            f"session.model got a model whose {lazy[0]} has no shape yet.",
            hint="Call it once before registering it: model(x) with some rows of the data.",
        )


def check_optimizer(optimizer: Any) -> None:
    """Check that it is a torch optimizer. Raises StepMisuse."""
    if not isinstance(optimizer, Optimizer):
        raise StepMisuse(
            f"session.optimizer got a {type(optimizer).__name__}, which is not a torch.optim.Optimizer.",
            hint="Register the optimizer that it wraps, and do the rest in session.on_commit; or derive it from "
            "torch.optim.Optimizer, with its state in self.state.",
        )
    if not hasattr(
        optimizer, "_optimizer_step_pre_hooks"
    ):  # what torch's own __init__ sets, whatever a class adds
        name = type(optimizer).__name__
        raise StepMisuse(
            f"the optimizer class {name} does not call super().__init__: without it the optimizer has no hooks, by "
            f"which the session knows who steps it, and torch cannot give its state_dict.",
            hint=f"In {name}.__init__ call super().__init__(params, defaults); if it wraps another optimizer, "
            f"super().__init__(base.param_groups, base.defaults).",
        )


def check_clipping(rules: ModeRules, clip_norm: float | None) -> None:
    """Check that there is somebody who has the whole gradient that a norm is to bound. Raises StepMisuse."""
    if clip_norm is not None and not rules.has_whole_gradient:
        raise StepMisuse(
            "clip_norm needs the whole gradient of a clock, of which each ssp server has a part.",
            hint="Use one server (sync.servers: 1), consistency: sync, or no clip_norm.",
        )


def check_scheduler(scheduler: Any) -> None:
    """Check that it is a schedule of an optimizer. Raises StepMisuse."""
    parts = ("optimizer", "step", "state_dict", "load_state_dict")
    missing = [part for part in parts if not hasattr(scheduler, part)]
    if missing:
        what = (
            f"the class {scheduler.__name__}"
            if isinstance(scheduler, type)
            else f"a {type(scheduler).__name__}"
        )
        raise StepMisuse(
            f"session.scheduler got {what}, which is not a learning-rate schedule: it has no "
            f"{' and no '.join(missing)}.",
            hint="Create one and register it: "
            "session.scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)).",
        )


def check_kept(name: str, kept: Any) -> None:
    """Check that its state can be copied and put back. Raises StepMisuse."""
    missing = [part for part in ("state_dict", "load_state_dict") if not callable(getattr(kept, part, None))]
    if missing:
        raise StepMisuse(
            f"session.keep({name!r}, …) got a {type(kept).__name__}, which has no {' and no '.join(missing)}.",
            hint="Give an object with both methods: load_state_dict(state) restores what state_dict() returned.",
        )


class KeptNames:
    """The places at which objects were given to `session.keep`, by name."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, int]] = {}

    def check(self, name: str, *, new: bool, calls: int) -> None:
        """Check that no other object was just given the name: only one of them would be healed and saved. Behind a
        session call another one may take its place, as an object that is made anew between loops.

        Args:
            new: it is not the object that is kept under the name.
            calls: session calls that have begun.

        Raises:
            StepMisuse: naming both lines.
        """
        place = running_place()
        before, then = self._given.get(name, (place, -1))
        if new and then == calls:
            raise StepMisuse(
                f"session.keep({name!r}, …) at {place} got another object than at {before}: under one name one object "
                f"is kept.",
                hint=f"Give each object a name of its own, as in session.keep({name + '.2'!r}, …). To go on with the "
                f"first one, call its load_state_dict.",
            )
        self._given[name] = place, calls
