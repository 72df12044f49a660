"""Decoders of images: the bytes of one to a tensor."""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def decode_image(encoded: bytes) -> Tensor:
    """JPEG, PNG or whatever Pillow reads → (C, H, W) uint8; one channel if grey, else three."""
    with Image.open(io.BytesIO(encoded)) as image:
        pixels = np.array(image if image.mode in {"L", "RGB"} else image.convert("RGB"))  # (H, W[, 3])
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    # Turned alone, the tensor would still have its channels last in memory.
    return torch.from_numpy(np.ascontiguousarray(planes))


def decode_image_float(encoded: bytes) -> Tensor:
    """As `decode_image`, but (C, H, W) float32 in 0..1."""
    return decode_image(encoded).float() / 255
