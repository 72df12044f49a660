"""Whether an optimizer's step goes by several parameters at once: by the norm of all gradients, for example.

A parameter server that holds a part of the weights has the gradients of that part alone, so that such a step makes
other weights than in one process. Seen are the operations of one step, with the hooks around it: a weight, a gradient
or a state is changed by what was computed from another parameter.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from inspect import unwrap
from math import inf
from pathlib import Path
from types import CodeType
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ringleader.program_text.current_line import BELOW
from ringleader.train.between_calls.findings import VariableFinding

HOW = "goes by several parameters at once, and each parameter server has a part of them"
CURE = "use sync.servers: 1, or sync: ring; instead of clip_grad_norm_ session.optimizer(optimizer, clip_norm=1.0)"
_BY_PLACE = ("_foreach_", "_fused_")
_Sources = frozenset[int]
_NOBODY: _Sources = frozenset()


class CoupledUpdates(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A watch over one step of an optimizer.

    Attributes:
        found: a parameter was changed by another one's values. Or, where one alone has a gradient, a hook has changed
            it by a norm of its own, which would be that of all if the others had theirs.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False
        spans: list[tuple[int, int, int]] = []
        self._made: dict[int, tuple[ReferenceType[Tensor], _Sources]] = {}
        self._numbers: _Sources = _NOBODY
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            # Scalars in a state are counts of steps.
            states = [part for part in tree_iter(optimizer.state.get(parameter, {})) if _is_plain(part)]
            for tensor in (parameter, parameter.grad, *(part for part in states if part.numel() > 1)):
                if _is_plain(tensor):
                    begin = tensor.data_ptr()
                    spans.append((begin, begin + tensor.nbytes, number))
        # By their places: all weights may lie in one storage.
        self._spans = sorted(spans)
        alone = sum(p.grad is not None for p in parameters) == 1 < len(parameters)
        self._hooks = frozenset(map(_code_of, _hooks_of(optimizer))) if alone else frozenset()

    @classmethod
    def matters(cls, optimizer: Optimizer) -> bool:
        """Whether more than an optimizer of torch's, or of ours, steps there."""
        # The session has a hook of its own before the step.
        hooks = len(optimizer._optimizer_step_pre_hooks) > 1 or bool(optimizer._optimizer_step_post_hooks)
        return hooks or is_of_program(optimizer)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports all of Dynamo

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [*args, *(kwargs or {}).values()]
        if func is torch.ops.aten._local_scalar_dense.default:
            self._numbers |= self._sources_of(args)
        elif func._schema.name.partition("::")[2].startswith(_BY_PLACE):
            for place in _places(given, out):
                self._note(*place, writes=func._schema.is_mutable)
        else:
            written = [
                value
                for argument, value in zip(func._schema.arguments, args, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]
            self._note(given, [out, *written], writes=func._schema.is_mutable)
        return out

    def _note(self, given: Sequence[Any], out: Any, *, writes: bool) -> None:
        sources = self._sources_of(given)
        for tensor in filter(_is_plain, tree_iter(out)):
            number = self._number_of(tensor)
            if writes and number is not None:
                self.found |= not sources | self._numbers <= {number}
                self.found |= self._is_in_hook() and self._is_scaled(tensor, given)
                # What was read as a number went into this change.
                self._numbers = _NOBODY
            elif sources:
                self._made[id(tensor)] = (ref(tensor), sources)

    def _is_scaled(self, tensor: Tensor, given: Sequence[Any]) -> bool:
        """Whether it is changed by one number that was computed from a parameter."""
        parts = [each for each in tree_iter(given) if _is_plain(each) and each.numel() == 1 < tensor.numel()]
        return bool(self._numbers) or any(self._sources(each) for each in parts)

    def _is_in_hook(self) -> bool:
        frame = sys._getframe() if self._hooks else None
        while frame is not None and frame.f_code not in self._hooks:
            frame = frame.f_back
        return frame is not None

    def _sources_of(self, values: Any) -> _Sources:
        return frozenset().union(*(self._sources(tensor) for tensor in filter(_is_plain, tree_iter(values))))

    def _sources(self, tensor: Tensor) -> _Sources:
        """The numbers of the parameters that a tensor is computed from."""
        made = self._made.get(id(tensor))
        # An id is another tensor's once its own is gone.
        if made is not None and made[0]() is tensor:
            return made[1]
        number = self._number_of(tensor)
        return _NOBODY if number is None else frozenset((number,))

    def _number_of(self, tensor: Tensor) -> int | None:
        """The number of the parameter that a tensor lies in, or in the gradient or state of which."""
        place = tensor.data_ptr()
        at = bisect_right(self._spans, (place, inf, 0)) - 1
        return self._spans[at][2] if at >= 0 and self._spans[at][0] <= place < self._spans[at][1] else None


def is_of_program(optimizer: Optimizer) -> bool:
    """Whether its class is none of torch's, nor of ours."""
    return not type(optimizer).__module__.startswith(("torch.", "ringleader."))


def finding_of(optimizer: Optimizer) -> VariableFinding:
    """The finding that a step of this optimizer is coupled, with the place of its `step`, or else of a hook."""
    kind: Any = type(optimizer)
    for code in map(_code_of, (kind.step, *_hooks_of(optimizer))):
        if code is not None and not code.co_filename.startswith(BELOW):
            line = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
            return VariableFinding(f"{kind.__name__}.step with its hooks", line, CURE, HOW)
    return VariableFinding(f"{kind.__name__}.step with its hooks", kind.__module__, CURE, HOW)


def _hooks_of(optimizer: Optimizer) -> list[Any]:
    return [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]


def _code_of(function: Any) -> CodeType | None:
    inner = unwrap(function.func if isinstance(function, partial) else function)
    return getattr(getattr(inner, "__func__", inner), "__code__", None)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _places(given: Sequence[Any], out: Any) -> Iterator[tuple[list[Any], Any]]:
    """What an operation over lists takes and gives at each place of them; what is in no list counts for all."""
    lists = [value for value in given if isinstance(value, list | tuple)]
    others = [value for value in given if isinstance(value, Tensor)]
    made = out if isinstance(out, list | tuple) else []
    for place in range(max(map(len, lists), default=0)):
        at = [value[place] for value in lists if place < len(value)]
        # In place: the first list is what is changed.
        yield [*at, *others], [*at[:1], *made[place : place + 1]]
