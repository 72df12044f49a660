"""Weights that torch's hooks compute from others before each forward: those that `torch.nn.utils.prune` masks, and
those of the older `weight_norm` and `spectral_norm`.

Behind a loop a module has them as its last forward left them: computed before the last step, earlier on a worker that
had no slice of it, and at the top on a server and a joiner. Lines between calls that read them, as a second pruning
does, would find others on each member. So they are computed as such lines begin, from the weights at the call's end.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


@torch.inference_mode(False)  # the program may have it on, and train with what is made here
@torch.no_grad()
def compute_derived(models: Iterable[nn.Module]) -> list[Tensor]:
    """Compute these weights of the models anew; returns them."""
    return [
        _computed(module, hook)
        for model in models
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, BasePruningMethod | SpectralNorm | WeightNorm)
    ]


def _computed(module: nn.Module, hook: BasePruningMethod | SpectralNorm | WeightNorm) -> Tensor:
    weight: Tensor
    if isinstance(hook, BasePruningMethod):
        name, weight = hook._tensor_name, hook.apply_mask(module)  # type: ignore[no-untyped-call] # as torch has it
    elif isinstance(hook, SpectralNorm):
        # Without a step of the power iteration, which would change buffers.
        name, weight = hook.name, hook.compute_weight(module, do_power_iteration=False)
    else:
        name, weight = hook.name, hook.compute_weight(module)
    setattr(module, name, weight)
    return weight
