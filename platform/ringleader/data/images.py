"""Decoders of images: the bytes of one to a tensor."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Encoded = bytes | Mapping[str, Any]
"""The bytes of an image, or `{"bytes", "path"}`, as Hugging Face `datasets` keeps one in its files."""


def decode_image(encoded: Encoded) -> Tensor:
    """JPEG, PNG or whatever Pillow reads → (C, H, W) uint8; one channel if grey, else three.

    Raises:
        ValueError: there are no bytes, but the path of a file.
    """
    with Image.open(io.BytesIO(_bytes_of(encoded))) as image:
        pixels = np.array(image if image.mode in {"L", "RGB"} else image.convert("RGB"))  # (H, W[, 3])
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    # Turned alone, the tensor would still have its channels last in memory.
    return torch.from_numpy(np.ascontiguousarray(planes))


def decode_image_float(encoded: Encoded) -> Tensor:
    """As `decode_image`, but (C, H, W) float32 in 0..1."""
    return decode_image(encoded).float() / 255


def _bytes_of(encoded: Encoded) -> bytes:
    if not isinstance(encoded, Mapping):
        return encoded
    found: bytes | None = encoded.get("bytes")
    if found is None:
        raise ValueError(
            f"the image is not in it, but the path {encoded.get('path')!r}: write the set by save_to_disk or "
            f"to_parquet of datasets, which take images in"
        )
    return found
