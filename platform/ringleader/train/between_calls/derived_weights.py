"""Weights that torch's hooks compute from others before each forward: those that `torch.nn.utils.prune` masks, and
those of the older `weight_norm` and `spectral_norm`.

Behind a loop or a step a module has them as its last forward left them: computed before the last update, earlier on a
worker that had no slice of it, and at the top on a server and a joiner. Lines that read them there, as a second pruning
does, would find others on each member. So they are computed as such lines begin, from the weights that these run on.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

Hook = BasePruningMethod | SpectralNorm | WeightNorm
Derived = tuple[nn.Module, Hook]


def derived_of(models: Iterable[nn.Module]) -> list[Derived]:
    """The modules of the models that have such weights, each with the hook that computes one."""
    return [
        (module, hook)
        for model in models
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, Hook)
    ]


def values_now(derived: Iterable[Derived]) -> list[Any]:
    """These weights as the modules have them, computed by whichever forward was the last."""
    return [getattr(module, _name_of(hook), None) for module, hook in derived]


@torch.inference_mode(False)  # the program may have it on, and train with what is made here
@torch.no_grad()
def compute(derived: Iterable[Derived]) -> list[Tensor]:
    """Compute these weights anew; returns them."""
    return [_computed(module, hook) for module, hook in derived]


def _computed(module: nn.Module, hook: Hook) -> Tensor:
    weight: Tensor
    if isinstance(hook, BasePruningMethod):
        weight = hook.apply_mask(module)  # type: ignore[no-untyped-call] # as torch has it
    elif isinstance(hook, SpectralNorm):
        # Without a step of the power iteration, which would change buffers.
        weight = hook.compute_weight(module, do_power_iteration=False)
    else:
        weight = hook.compute_weight(module)
    setattr(module, _name_of(hook), weight)
    return weight


def _name_of(hook: Hook) -> str:
    return str(hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name)
