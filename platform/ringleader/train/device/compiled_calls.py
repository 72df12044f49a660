"""The calls that a compiled model has met, by the form of their inputs, and the same compiled again without the rows:
what a joiner does while the group trains on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ringleader.train.state.other_forward import Forward

BESIDE = 8
"""The most calls that a joiner compiles for beside the group. Those of a job with more are compiled in its turns."""
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor but for its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorForm":
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)

    def zeros(self, device: torch.device) -> Tensor:
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        return tensor.zero_().requires_grad_(self.needs_grad)


@dataclass(frozen=True, slots=True)
class CallForm:
    """What code is compiled for: the inputs of one call, each a `TensorForm` or a plain value, and the modes of torch.

    Attributes:
        grads: gradients were recorded.
        autocast: the type that autocast gave to products; None without.
    """

    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    grads: bool
    autocast: torch.dtype | None


MetCall = tuple[CallForm, tuple[bool, ...]]
"""A call, and the training modes of the model's modules in it."""


class CompiledCalls:
    """The calls of one compiled model, in the order in which they were first met.

    Args:
        compiled: `compiled(model, *args, **kwargs)`.
    """

    def __init__(self, model: nn.Module, compiled: Forward, device: torch.device) -> None:
        self._model = model
        self._compiled = compiled
        self._device = device
        self._met: dict[CallForm, tuple[bool, ...]] = {}
        self._whole: set[CallForm] = set()

    def note(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a call that begins, if it can be made again from its form."""
        inputs = (*args, *kwargs.values())
        if torch.is_inference_mode_enabled() or not all(_has_form(each, self._device) for each in inputs):
            return
        kind = self._device.type
        form = CallForm(
            tuple(map(_form_of, args)),
            tuple((name, _form_of(value)) for name, value in kwargs.items()),
            torch.is_grad_enabled(),
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
        )
        if form not in self._met and len(self._met) < BESIDE:
            self._met[form] = tuple(module.training for module in self._model.modules())

    def met(self) -> tuple[MetCall, ...]:
        """The calls so far, which never change."""
        return tuple(self._met.items())

    def compile(self, calls: Sequence[MetCall]) -> None:
        """Compile for calls that another worker has met. The model stays as it is."""
        for form, modes in calls:
            # One that was met here may have had no backward: lines that run before a worker's seat make none.
            if form in self._whole:
                continue
            # Zeros may be no input for this model: its first turn compiles then, and tells what is wrong.
            with suppress(Exception), untouched(self._model, self._device):
                self._call(form, modes)
                self._met[form] = modes
                self._whole.add(form)

    def _call(self, form: CallForm, modes: Sequence[bool]) -> None:
        for module, training in zip(self._model.modules(), modes, strict=True):
            module.training = training
        args = [_zeros(each, self._device) for each in form.args]
        kwargs = {name: _zeros(each, self._device) for name, each in form.kwargs}
        with torch.set_grad_enabled(form.grads):
            with torch.autocast(self._device.type, dtype=form.autocast, enabled=form.autocast is not None):
                outputs = list(_tensors(self._compiled(self._model, *args, **kwargs)))
            weights = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
            reached = [each for each in outputs if each.requires_grad]
            # The backward is compiled when it first runs. Into no `.grad`: sums may be on their way there.
            if reached and weights:
                torch.autograd.grad(reached, weights, list(map(torch.zeros_like, reached)), allow_unused=True)


@contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put back what the block's forwards change: buffers, attributes, training modes, and random numbers."""
    modules = list(model.modules())
    attributes = [(dict(vars(module)), dict(module._buffers)) for module in modules]
    values = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        for module, (own, buffers) in zip(modules, attributes, strict=True):
            _refill(vars(module), own)
            _refill(module._buffers, buffers)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


def _refill(into: dict[str, Any], values: dict[str, Any]) -> None:
    into.clear()
    into.update(values)


def _has_form(value: Any, device: torch.device) -> bool:
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.layout is torch.strided and value.device.type == device.type
    return type(value) in _PLAIN


def _form_of(value: Any) -> Any:
    return TensorForm.of(value) if isinstance(value, Tensor) else value


def _zeros(form: Any, device: torch.device) -> Any:
    return form.zeros(device) if isinstance(form, TensorForm) else form


def _tensors(made: Any) -> Iterator[Tensor]:
    if isinstance(made, Tensor):
        yield made
    elif isinstance(made, Mapping):
        for each in made.values():
            yield from _tensors(each)
    elif isinstance(made, Sequence) and not isinstance(made, str):
        for each in made:
            yield from _tensors(each)
