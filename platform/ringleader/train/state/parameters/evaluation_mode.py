"""The mode in which scores are computed: eval mode without gradients, behind which all is as it was."""

from collections.abc import Iterable, Iterator
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from ringleader.train.state.buffers import CommittedBuffers


class EvaluationMode:
    """The mode of one member's models; training flags, committed buffers and weights are restored afterwards.

    A module may have a `train` of its own, which changes more than a flag: low-rank adapters (loralib) add their
    product to the weight in `eval()`, and take it away in `train()`.

    Args:
        models: the registered ones.
        buffers: theirs.
    """

    def __init__(self, models: Iterable[nn.Module], buffers: CommittedBuffers) -> None:
        self._models = list(models)
        self._buffers = buffers
        self._no_grad = torch.no_grad()
        self._flags: list[tuple[nn.Module, bool]] = []
        self._changed: list[tuple[Parameter, Tensor, Tensor]] = []

    def __enter__(self) -> None:
        self._buffers.rewind()
        self._flags = [(part, part.training) for model in self._models for part in model.modules()]
        self._no_grad.__enter__()
        saved = [(p, p.data, p.detach().clone()) for p in self._weights_of_own_modes()]
        for model in self._models:
            model.eval()
        # The copies of all others are dropped: most modules with a `train` of their own keep a part in eval mode.
        self._changed = [(p, data, value) for p, data, value in saved if not _same(p, data, value)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part, training in self._flags:
            if _has_own_mode(part) and part.training != training:
                part.train(training)
        for parameter, data, value in self._changed:
            # Not what `train` has computed: a sum and a difference of floats is not what it was before, and who scores
            # again behind a broken step would have it twice.
            parameter.data = data.copy_(value)
        self._changed = []
        self._no_grad.__exit__(kind, error, trace)
        self._buffers.rewind()
        for part, training in self._flags:
            # Not by `train()`, which would switch modules that the program keeps in eval mode.
            part.training = training

    def _weights_of_own_modes(self) -> Iterator[Parameter]:
        own = (part for part, _ in self._flags if _has_own_mode(part))
        return iter(dict.fromkeys(p for part in own for p in part.parameters() if _has_values(p)))


def _has_own_mode(part: nn.Module) -> bool:
    """Whether a module's `train` or `eval` is not torch's."""
    names = ("train", "eval")
    return any(
        name in vars(part) or getattr(type(part), name) is not getattr(nn.Module, name) for name in names
    )


def _has_values(parameter: Parameter) -> bool:
    return parameter.layout is torch.strided and not parameter.is_meta


def _same(parameter: Parameter, data: Tensor, value: Tensor) -> bool:
    return parameter.data_ptr() == data.data_ptr() and torch.equal(parameter, value)
