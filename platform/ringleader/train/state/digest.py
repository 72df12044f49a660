"""The fingerprint of a model's weights."""

import hashlib
import sys

import torch
from torch import Tensor, nn

from ringleader.train.state.buffers import persistent_buffers


def weights_sha256(module: nn.Module) -> str:
    """SHA-256 over the sorted named parameters, then the sorted persistent buffers.

    Each goes in as name, dtype, shape and its little-endian contiguous bytes, so that two models with the same
    digest have the same bits.
    """
    digest = hashlib.sha256()
    for name, tensor in [*sorted(module.named_parameters()), *sorted(persistent_buffers(module))]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_little_endian(tensor))
    return digest.hexdigest()


def _little_endian(tensor: Tensor) -> bytes:
    # `reshape`: a tensor without dimensions cannot be viewed as another type.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy()
    if sys.byteorder == "big" and flat.element_size() > 1:
        raw = raw.reshape(-1, flat.element_size())[:, ::-1]
    return bytes(raw.tobytes())
