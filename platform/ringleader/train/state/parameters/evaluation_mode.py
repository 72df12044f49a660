"""The mode in which scores are computed: eval mode without gradients, behind which all is as it was."""

from collections.abc import Iterable, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from ringleader.train.state.buffers import CommittedBuffers
from ringleader.train.state.hidden_state import looked_at
from ringleader.train.state.parameters.scored_attributes import ScoredAttributes
from ringleader.train.state.parameters.tensor_version import marks

MOST_BYTES = 1 << 30
"""Of the copies of weights. They take the place of gradients and activations, which an evaluation does not have."""
PROBED = 64
"""Of the values of a weight, between two pieces; all of a large model's take as long as scoring some rows."""

_Saved = tuple[Parameter, Tensor, Tensor]
"""A parameter, the memory that it had, and a copy of its values."""


class EvaluationMode:
    """The mode of one member's models; training flags, committed buffers, weights and attributes that the score sets
    are restored afterwards.

    A module may have a `train` of its own, which changes more than a flag: low-rank adapters (loralib) add their
    product to the weight in `eval()`, and take it away in `train()`. A score may change weights for its own rows.

    Args:
        models: the registered ones.
        buffers: theirs.
        attributes: those of theirs that the score sets.
    """

    def __init__(
        self, models: Iterable[nn.Module], buffers: CommittedBuffers, attributes: ScoredAttributes
    ) -> None:
        self._models = list(models)
        self._buffers = buffers
        self._attributes = attributes
        self._no_grad = torch.no_grad()
        self._flags: list[tuple[nn.Module, bool]] = []
        self._own_modes: list[tuple[nn.Module, bool]] = []
        self._before: list[_Saved] = []
        self._within: list[_Saved] = []
        self._marks: list[tuple[int, int]] = []
        self._pieces, self._changes = 0, False

    def __enter__(self) -> "EvaluationMode":
        self._buffers.rewind()
        self._flags = [(part, part.training) for model in self._models for part in model.modules()]
        self._no_grad.__enter__()
        self._before = _saved(parameter for model in self._models for parameter in model.parameters())
        for model in self._models:
            model.eval()
        self._own_modes = [(part, training) for part, training in self._flags if _has_own_mode(part)]
        # Without such a module nothing but flags has changed.
        self._within = self._before
        if self._own_modes:
            self._within = [saved if _holds(saved) else _save(saved[0]) for saved in self._before]
        self._marks = marks(self._weights, ())
        return self

    def begin_piece(self) -> None:
        """Begin with the committed buffers and weights: a score may have changed some, and how many pieces of the rows
        were scored here before differs by member."""
        self._buffers.rewind()
        self._pieces += 1
        if self._pieces == 1:
            return  # nothing was scored yet
        self._attributes.put_back()
        if self._changes or self._pieces == 2 or self._may_have_changed():
            self._changes |= _put_back(self._within)
            self._marks = marks(self._weights, ())

    def _may_have_changed(self) -> bool:
        if marks(self._weights, ()) != self._marks:
            return True
        # A change through `parameter.data` leaves no mark: behind some pieces a few values are compared.
        return looked_at(self._pieces - 1) and not all(map(_seems_to_hold, self._within))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attributes.put_back()
        _put_back(self._within)
        for part, training in self._own_modes:
            if part.training != training:
                part.train(training)
        if self._own_modes:
            # Not what `train` has computed: a sum and a difference of floats is not what it was before, and who scores
            # again behind a broken step would have it twice.
            _put_back(self._before)
        self._before, self._within = [], []
        self._no_grad.__exit__(kind, error, trace)
        self._buffers.rewind()
        for part, training in self._flags:
            # Not by `train()`, which would switch modules that the program keeps in eval mode.
            part.training = training

    @property
    def _weights(self) -> list[Parameter]:
        return [parameter for parameter, _, _ in self._within]


def _has_own_mode(part: nn.Module) -> bool:
    """Whether a module's `train` or `eval` is not torch's."""
    names = ("train", "eval")
    return any(
        name in vars(part) or getattr(type(part), name) is not getattr(nn.Module, name) for name in names
    )


def _saved(weights: Iterable[Parameter]) -> list[_Saved]:
    """Copies of weights, of as many as the bound has room for."""
    found, left = [], MOST_BYTES
    for parameter in dict.fromkeys(weights):
        if is_lazy(parameter) or parameter.layout is not torch.strided or parameter.is_meta:
            continue
        left -= parameter.nbytes
        if left >= 0:
            found.append(_save(parameter))
    return found


def _save(parameter: Parameter) -> _Saved:
    return parameter, parameter.data, parameter.detach().clone()


def _holds(saved: _Saved) -> bool:
    parameter, data, value = saved
    return parameter.data_ptr() == data.data_ptr() and torch.equal(parameter, value)


def _seems_to_hold(saved: _Saved) -> bool:
    parameter, data, value = saved
    step = parameter.numel() // PROBED + 1
    return parameter.data_ptr() == data.data_ptr() and torch.equal(
        parameter.detach().flatten()[::step], value.flatten()[::step]
    )


def _put_back(saved: Sequence[_Saved]) -> bool:
    """Give the parameters their values in the memory that they had. Returns whether any had others."""
    changed = [each for each in saved if not _holds(each)]
    for parameter, data, value in changed:
        parameter.data = data.copy_(value)
    return bool(changed)
