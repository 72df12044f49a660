"""The structure that the exchange was laid out for at the first session call: parameters and buffers of the registered
models, and the parameter groups that optimizers step.

A program that changes it later would train something else than it believes, or meet a joiner that has another model: it
is refused at its next session call, before any step is made with it.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer

from ringleader.errors import StepMisuse
from ringleader.program_text.current_line import calling_line, line_matching
from ringleader.train.state.training_state import TrainingState

NEW_VALUES = (
    "Set the values of the existing parameter: net.load_state_dict(state) without assign=True, or, under "
    "torch.no_grad(), parameter.copy_(values)."
)
AT_TOP = (
    "Create layers, masks and parametrizations at the top of the training function, even if they are used from a later "
    "epoch on. To prune between loops call prune.identity(layer, name) at the top, or use parameter.mul_(mask) under "
    "torch.no_grad()."
)
OTHER_TYPE = (
    "Convert a model before session.model(net), and keep it on session.device; precision: bf16 in the job file "
    "computes in 16 bits without converting the weights."
)
SAME_SHAPE = "Change the values of parameters and buffers between loops, but never their shape."
GROUPS = (
    "Groups may be added between two loops. To leave parameters out, freeze them with parameter.requires_grad_(False), "
    "set their group's lr to 0, or register another optimizer for all of them with session.optimizer(…)."
)
CONVERTS = r"\.(half|double|float|bfloat16|to|type|cpu|cuda)\("
REGROUPS = (
    r"param_groups(\[[^\]]*\])*\.(pop|remove|clear|extend|append|insert|reverse|sort)\(|\bdel .*param_groups"
    r"|param_groups(\[[^\]]*:[^\]]*\])? \+?= |\['params'\](\.(pop|remove|clear|extend|append|insert)\(| \+?= )"
)


_guard = threading.Lock()
_structures: tuple["ModelStructure", ...] = ()
"""The structures of all sessions that train in this process. Replaced as a whole, so that any thread may iterate."""


def _registered(module: nn.Module, name: str, _what: Any) -> None:
    """Tell every structure that something was put into a module of this process."""
    for structure in _structures:
        structure.registered(module, name)


# Once and for good: torch walks through its hooks without a lock, so one that came or went with each session would
# break `register_parameter` in another thread ("OrderedDict mutated during iteration").
register_module_parameter_registration_hook(_registered)
register_module_buffer_registration_hook(_registered)
register_module_module_registration_hook(_registered)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A parameter, or a persistent buffer, of which only shape, type and device matter."""

    parameter: nn.Parameter | None
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class ModelStructure:
    """One member's structure of models and optimizers."""

    def __init__(self, held: TrainingState) -> None:
        self._held = held
        self._entries: dict[str, _Entry] | None = None
        self._groups: list[tuple[Optimizer, list[tuple[int, ...]]]] = []
        self._modules: frozenset[int] = frozenset()
        self._line = ""

    def check(self) -> None:
        """Check the structure as a session call begins. The first call fixes it.

        Raises:
            StepMisuse: naming what has changed, the line, and what to write instead.
        """
        if self._entries is None:
            self._fix()
        else:
            self._check_entries(self._entries)
            self._check_groups()
        self._groups = [(o, _groups_of(o)) for o, _ in self._held.optimizers]

    def check_body(self) -> None:
        """Check it as a turn of a loop's body ends, where a line of the body has put something else into a model."""
        if self._line and self._entries is not None:
            self._check_entries(self._entries)

    def release(self) -> None:
        """Watch modules no more: training is over. Idempotent."""
        global _structures
        with _guard:
            _structures = tuple(other for other in _structures if other is not self)

    def _fix(self) -> None:
        self._entries = dict(self._live())
        self._modules = frozenset(id(part) for model in self._held.models for part in model.modules())
        global _structures
        with _guard:
            _structures = (*_structures, self)

    def registered(self, module: nn.Module, name: str) -> None:
        """Note the line that put something into a registered model; called for any module of this process."""
        # Forwards may put another tensor in a buffer's place.
        if id(module) in self._modules and name not in module._buffers:
            self._line = calling_line()

    def _live(self) -> Iterator[tuple[str, _Entry]]:
        for number, model in enumerate(self._held.models):
            prefix = f"{number}." if len(self._held.models) > 1 else ""
            # Under every name: it has to show where two weights are tied no longer.
            for name, parameter in model.named_parameters(remove_duplicate=False):
                yield prefix + name, _entry(parameter, parameter)
            for name, buffer in _buffers(model):
                yield prefix + name, _entry(buffer, None)

    def _check_entries(self, before: dict[str, _Entry]) -> None:
        live = dict(self._live())
        for name, was in before.items():
            now = live.get(name)
            if now is None:
                raise self._misuse(f"no longer has {name!r}", AT_TOP)
            if was.shape != now.shape:
                what = f"has {name!r} with shape {tuple(now.shape)} instead of {tuple(was.shape)}"
                raise self._misuse(what, SAME_SHAPE, r"\.data = ")
            if (was.dtype, was.device) != (now.dtype, now.device):
                what = f"has {name!r} as {now.dtype} on {now.device} instead of {was.dtype} on {was.device}"
                raise self._misuse(what, OTHER_TYPE, CONVERTS)
            if was.parameter is not now.parameter:
                what = f"has a new parameter object {name!r}, which no optimizer steps and other workers do not have"
                raise self._misuse(what, NEW_VALUES)
        new = [name for name in live if name not in before]
        if new:
            raise self._misuse(f"has a new entry {new[0]!r}, which other workers' models may lack", AT_TOP)
        self._entries, self._line = live, ""

    def _check_groups(self) -> None:
        for (optimizer, _), (before, groups) in zip(self._held.optimizers, self._groups, strict=False):
            # Groups behind the known ones have been added since, which is allowed.
            if optimizer is before and _groups_of(optimizer)[: len(groups)] != groups:
                place = line_matching(REGROUPS)
                raise StepMisuse(
                    f"parameters were removed from a parameter group of {type(optimizer).__name__}, or added to one, "
                    f"since "
                    f"the previous session call ({place}).",
                    hint=GROUPS,
                )

    def _misuse(self, what: str, cure: str, pattern: str = r"") -> StepMisuse:
        place = self._line or line_matching(pattern)
        return StepMisuse(f"since the first loop a registered model {what} ({place}).", hint=cure)


def alike(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a saved state that the model has, too, in the same shape and type."""
    live = model.state_dict()
    return {
        name: value for name, value in saved.items() if name in live and _kind(value) == _kind(live[name])
    }


def fits(model: nn.Module, saved: Mapping[str, Any]) -> bool:
    """Whether the model has the entries of a saved state, and no others."""
    return alike(model, saved).keys() == saved.keys() == model.state_dict().keys()


def _kind(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else None


def _entry(tensor: Tensor, parameter: nn.Parameter | None) -> _Entry:
    return _Entry(parameter, tensor.shape, tensor.dtype, tensor.device)


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that a state_dict has, by name."""
    for place, part in model.named_modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield f"{place}.{name}" if place else name, buffer


def _groups_of(optimizer: Optimizer) -> list[tuple[int, ...]]:
    return [tuple(map(id, group["params"])) for group in optimizer.param_groups]
