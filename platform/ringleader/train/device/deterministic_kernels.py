"""The kernels of a CUDA device: in a job whose bits are promised, those whose sums have one order.

torch has some operations in two kernels, of which the quicker one adds in any order, and some in that one alone.
`torch.use_deterministic_algorithms(True, warn_only=True)` takes the slower one where there is one, and warns where
there is none: such an operation is named in the job's result. Attention has a slower kernel too, which torch takes only
where it may raise instead of warning: so a backward through attention runs in that mode, if no operation of it raises.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.train.between_calls.named_findings import NamedFindings
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.hidden_state import looked_at

WORKSPACE, ONE_ORDER = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""cuBLAS adds in one order only with a workspace of fixed size; it reads this when its first product is computed."""
WARNINGS = (
    "(?s).*(does not have a deterministic implementation|defaults to a non-deterministic|it uses CuBLAS)"
)
_NAME = re.compile(r"(\S+) does not have a deterministic|(.+) defaults to a non-deterministic")
_ATTENTION = re.compile("ScaledDotProduct.*Backward")
_CUDNN = "ScaledDotProductCudnn"
_FILLS: Any = torch.utils.deterministic
FIRST_TURNS = 4
"""The turns of each loop in which attention is looked for, beside the ones that `looked_at` says."""


class DeterministicKernels:
    """One member's kernels.

    Attributes:
        found: the operations without one order; healed and checkpointed.
    """

    def __init__(self, context: MemberContext) -> None:
        self._context = context
        self._on = context.same_bits and context.device.type == "cuda"
        self.found = NamedFindings(
            context,
            "the CUDA device adds in any order in some operations ({}): use others, or leave the modes of torch as the "
            "session sets them",
        )
        self._turns = 0
        self._attends: bool | None = None
        self._before: tuple[Any, ...] = ()
        self._shown: Callable[..., None] | None = None

    def begin(self) -> None:
        """Choose the kernels, before the program computes anything."""
        if not self._on:
            return
        os.environ.setdefault(WORKSPACE, ONE_ORDER)
        self._before = _modes()
        if not torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(True, warn_only=True)
        # What torch would fill with NaN is overwritten in any case, and each fill is a kernel.
        _FILLS.fill_uninitialized_memory = False
        torch.set_warn_always(True)
        # It has no kernel with one order, and torch would take it as long as it may not raise.
        torch._C._set_sdp_use_cudnn(False)
        self._shown, warnings.showwarning = warnings.showwarning, self._hear
        self._listen()

    def end(self) -> None:
        """Leave the modes as they were; idempotent."""
        if self._shown is None:
            return
        _set_modes(self._before)
        if warnings.showwarning == self._hear:
            warnings.showwarning = self._shown
        warnings.filters[:] = [each for each in warnings.filters if not _ours(each)]  # type: ignore[index]
        self._shown = None

    def begin_turn(self) -> None:
        """Listen to torch's warnings, whatever the program has silenced."""
        if self._on:
            self._listen()

    def end_turn(self) -> None:
        """Look for modes that the program has set."""
        if not self._on:
            return
        if torch.backends.cudnn.benchmark:
            self.found.add("convolutions, by torch.backends.cudnn.benchmark")
        if not torch.are_deterministic_algorithms_enabled():
            self.found.add(
                "all operations, since the program has turned torch.use_deterministic_algorithms off"
            )

    def backward(self, loss: Tensor, inputs: Sequence[Parameter] | None = None) -> None:
        """Run the backward of a slice's loss. Only `inputs` get gradients, if there are any."""
        if self._on and self._strict(loss):
            with _raising():
                loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]
        else:
            loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]

    def _strict(self, loss: Tensor) -> bool:
        """Whether the backward goes through attention, and has a kernel with one order for every operation."""
        turn, self._turns = self._turns, self._turns + 1
        if self._attends is None and (turn < FIRST_TURNS or looked_at(turn)):
            nodes = _nodes(loss)
            names = [name for name in (node.name() for node in nodes) if _ATTENTION.match(name)]
            if any(name.startswith(_CUDNN) for name in names):
                self.found.add("attention by cuDNN")
            if names:
                self._attends = _has_kernels(loss, nodes)
        return self._attends is True and torch.is_deterministic_algorithms_warn_only_enabled()

    def _listen(self) -> None:
        if not warnings.filters or not _ours(warnings.filters[0]):
            warnings.filterwarnings("always", message=WARNINGS)

    def _hear(self, message: Warning | str, *more: Any, **options: Any) -> None:
        text = str(message)
        if re.match(WARNINGS, text):
            found = _NAME.search(text)
            products = f"products, as {WORKSPACE} is not {ONE_ORDER}"
            self.found.add(next(filter(None, found.groups())) if found else products)
        elif self._shown is not None:
            self._shown(message, *more, **options)


def _modes() -> tuple[Any, ...]:
    return (
        torch.get_deterministic_debug_mode(),
        _FILLS.fill_uninitialized_memory,
        torch.is_warn_always_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
    )


def _set_modes(modes: tuple[Any, ...]) -> None:
    torch.set_deterministic_debug_mode(modes[0])
    _FILLS.fill_uninitialized_memory = modes[1]
    torch.set_warn_always(modes[2])
    torch._C._set_sdp_use_cudnn(modes[3])


def _ours(entry: Any) -> bool:
    pattern = entry[1]
    return getattr(pattern, "pattern", None) == WARNINGS


@contextmanager
def _raising() -> Iterator[None]:
    """torch raises where an operation has no kernel with one order, while the block runs."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


def _has_kernels(loss: Tensor, nodes: Sequence[Any]) -> bool:
    """Whether the backward raises nothing in the mode in which attention has one order. Its gradients are dropped."""
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    try:
        with _raising():
            torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    except RuntimeError:
        return False
    return True


def _nodes(loss: Tensor) -> list[Any]:
    """The nodes of a loss's graph."""
    seen: dict[Any, None] = {}
    left: list[Any] = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen[node] = None
            left += [following for following, _ in node.next_functions]
    return list(seen)
