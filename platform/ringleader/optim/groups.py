"""Parameter groups that leave biases and the weights of norms out of what is meant for layers."""

from typing import Any

from torch import nn


def layer_groups(model: nn.Module, *, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Two groups for LARS or LAMB: matrices and kernels, and tensors of less than two dimensions (biases, weights of
    norms), which are neither scaled layer by layer nor decayed, as is common with both.

    Args:
        weight_decay: of the first group.

    Returns:
        the groups that have parameters, in the order of the model.
    """
    parameters = list(model.parameters())
    layers = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": layers, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0, "adapt": False},
    ]
    return [group for group in groups if group["params"]]
