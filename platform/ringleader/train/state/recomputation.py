"""Recomputation: submodules whose activations are not kept for the backward but computed once more in it.

Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174, by torch.utils.checkpoint.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ringleader.errors import StepMisuse
from ringleader.train.state.other_forward import put_forward

NONE, AUTO = "none", "auto"
HINT = "Give the names of submodules, such as recompute=['layers.0', 'layers.1'], or leave recompute out."


def recompute_in(model: nn.Module, recompute: str | Sequence[str]) -> list[str]:
    """Have these submodules recomputed in the backward: `none`, `auto` for repeated blocks, or by their paths.

    Returns:
        their paths.

    Raises:
        StepMisuse: there is no such submodule, or `auto` finds none.
    """
    paths = _paths(model, recompute)
    for path in paths:
        _recompute(model.get_submodule(path))
    return paths


def check_compiled_blocks(model: nn.Module, blocks: Sequence[str]) -> None:
    """Check that a compiled model can have these blocks. Raises StepMisuse."""
    for path in blocks:
        if next(model.get_submodule(path).buffers(), None) is not None:
            raise StepMisuse(
                f"session.model got compile=True and is to recompute {path!r}, which has buffers: compiled code cannot "
                f"undo what the second forward does to them.",
                hint="Leave compile or recompute out, or recompute blocks without buffers.",
            )


def _paths(model: nn.Module, recompute: str | Sequence[str]) -> list[str]:
    if recompute == NONE:
        return []
    if recompute == AUTO:
        if not (found := repeated_blocks(model)):
            raise StepMisuse("session.model got recompute='auto', but the model repeats no block.", hint=HINT)
        return found
    named = dict(model.named_modules())
    if isinstance(recompute, str) or not all(isinstance(path, str) for path in recompute):
        raise StepMisuse(f"session.model got recompute={recompute!r:.200}.", hint=HINT)
    for path in recompute:
        if not path or path not in named:
            there = ", ".join([name for name in named if name][:12])
            raise StepMisuse(f"the model has no submodule {path!r} to recompute; it has: {there}.", hint=HINT)
    return list(dict.fromkeys(recompute))


def repeated_blocks(model: nn.Module) -> list[str]:
    """The paths of blocks: entries of a ModuleList or Sequential that are made of modules, of a class that comes there
    twice or more; the outermost ones."""
    found: list[str] = []
    for path, part in model.named_modules():
        if not isinstance(part, nn.ModuleList | nn.Sequential) or any(
            _inside(path, block) for block in found
        ):
            continue
        kinds = Counter(type(child) for child in part)
        found += [
            f"{path}.{name}" if path else name
            for name, child in part.named_children()
            if kinds[type(child)] > 1 and any(True for _ in child.children())
        ]
    return found


def _inside(path: str, block: str) -> bool:
    return path == block or path.startswith(f"{block}.")


def _recompute(block: nn.Module) -> None:
    plain = type(block).forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(self, *args, **kwargs)
        if next(self.buffers(), None) is None:
            return checkpoint(plain, self, *args, use_reentrant=False, **kwargs)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), _buffers_kept(self)

        return checkpoint(plain, self, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    put_forward(block, forward)


@contextmanager
def _buffers_kept(block: nn.Module) -> Iterator[None]:
    """Undo what the second forward does to buffers: running statistics have counted these rows already."""
    before = [(part, name, each, each.clone()) for part, name, each in _buffers_of(block)]
    try:
        yield
    finally:
        with torch.no_grad():
            for part, name, buffer, values in before:
                buffer.copy_(values)
                part._buffers[name] = buffer


def _buffers_of(block: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for part in block.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                yield part, name, buffer
