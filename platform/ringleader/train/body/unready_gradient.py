"""What stands in a weight's `.grad` while a loop's body runs: no worker has the whole gradient there.

It takes no memory, and whatever reads or changes it says so, in whichever function and under whichever name. A few
turns have it; all of them, where the program's text has lines that may read gradients.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from ringleader.program_text.current_line import CodeLine
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.program_scope import name_of

Refusal = Callable[[], None]
"""Raises, naming the line that runs."""

CLIPPING = frozenset(["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"])
"""Functions of torch that read gradients."""
_CLEARING = frozenset(["zero_", "_foreach_zero_"])
_OF_ZERO_GRAD = frozenset(["requires_grad_", "detach_"])
"""What `nn.Module.zero_grad` calls beside."""
_ABOUT = frozenset(
    {
        *("shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "stride", "dtype", "device"),
        *("layout", "is_sparse", "is_cuda", "is_cpu", "is_meta", "is_leaf", "is_complex"),
        *("is_floating_point", "get_device", "requires_grad", "grad_fn", "grad", "element_size", "itemsize"),
        *("nbytes", "_version", "_has_compatible_shallow_copy_type"),
    }
)
"""Functions and attributes that say what it is like, and nothing of its values."""
_APPLYING = frozenset(["_apply", "convert", "<lambda>"])
"""Functions of `nn.Module` by which it moves or converts its parameters, and their gradients with them."""
_TRACING = ("torch._dynamo", "torch._subclasses")
"""Modules that look at a model's parameters, and at what lies in them, before they compile it."""


class UnreadyGradient(Tensor):
    """A gradient that is not there yet: a sparse tensor without elements.

    Attributes:
        refuse: raises where the program reads or changes it, also later and elsewhere.
        cleared: something has set it to zero.
        form: the shape, type and device of its parameter; asked of a tensor of a subclass, each takes microseconds.
    """

    refuse: Refusal
    cleared: bool
    form: tuple[torch.Size, torch.dtype, torch.device]

    @classmethod
    def of(cls, parameter: Parameter, refuse: Refusal) -> "UnreadyGradient":
        """One for this parameter."""
        # Sparse: autograd adds to it out of place, so that a backward of the program's own comes to its hooks.
        shape, kind, place = parameter.shape, parameter.dtype, parameter.device
        empty = torch.empty(shape, dtype=kind, device=place, layout=torch.sparse_coo)
        made = Tensor._make_subclass(cls, empty)
        made._describe(refuse, (shape, kind, place))
        return made

    def _describe(self, refuse: Refusal, form: tuple[torch.Size, torch.dtype, torch.device]) -> None:
        self.refuse, self.form, self.cleared = refuse, form, False

    def begin_turn(self) -> None:
        """Forget that an earlier turn has set it to zero."""
        self.cleared = False

    def _note_clearing(self) -> None:
        self.cleared = True

    def suits(self, parameter: Parameter) -> bool:
        """Whether it may be the gradient of this parameter, which may have changed since."""
        return self.form == (parameter.shape, parameter.dtype, parameter.device)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = _name_of(func)
        unready = [each for each in _parts((*args, *(kwargs or {}).values())) if isinstance(each, cls)]
        if name in _CLEARING or name in _OF_ZERO_GRAD:
            for each in unready if name in _CLEARING else ():
                each._note_clearing()
            return args[0]
        if unready and name not in _ABOUT and _is_programs():
            unready[0].refuse()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def reads_gradients(place: CodeLine) -> bool:
    """Whether the function around the loop at `place`, or one of its file that it calls, may read gradients, by their
    text. No, where there is none."""
    code, line = place
    return _reads(code.co_filename, line)


@lru_cache(maxsize=256)
def _reads(file: str, line: int) -> bool:
    text = text_of(file)
    if text is None:
        return False
    scopes = text.reached_from({text.scope_at(line).name})
    return any(_has_reads(top) for top, scope in text.flows.scopes.items() if scope.name in scopes)


def _has_reads(top: ast.AST) -> bool:
    called = {id(node.func): name_of(node.func) for node in ast.walk(top) if isinstance(node, ast.Call)}
    read = (node for node in ast.walk(top) if isinstance(node, ast.Attribute) and node.attr == "grad")
    # Of `torch.autograd.grad(…)` no parameter's gradient comes.
    return any(id(node) not in called for node in read) or not CLIPPING.isdisjoint(called.values())


def _name_of(function: Any) -> str:
    """The name of a function of torch, or of the attribute that it reads or sets."""
    name = str(getattr(function, "__name__", ""))
    return str(function.__self__.__name__) if name in ("__get__", "__set__") else name


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def _is_programs() -> bool:
    """Whether the program has called, and not torch, which moves or converts a module as a whole, as by
    `net.to(device)`, or compiles it. The platform looks into no tensors of such classes."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (name := str(frame.f_globals.get("__name__"))).startswith("torch."):
        if name.startswith(_TRACING) or (name == nn.Module.__module__ and frame.f_code.co_name in _APPLYING):
            return False
        frame = frame.f_back
    return True
