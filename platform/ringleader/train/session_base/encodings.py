"""Artifacts as files: objects without pickled code, images as PNG, histograms and texts."""

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save as safetensors_of
from torch import Tensor

from ringleader.errors import StepMisuse

OBJECT_HINT = (
    "Give tensors, arrays, numbers, texts, None, and dicts, lists and tuples of these: model.state_dict() instead of "
    "model, for example."
)
IMAGE_HINT = (
    "Give (height, width), a tensor of (channels, height, width), an array of (height, width, channels), or say where "
    "channels are by channels='first' or 'last'; 1, 3 or 4 of them, uint8 or fractions from 0 to 1."
)
CHANNELS = (1, 3, 4)
HISTOGRAM_HINT = "Give a tensor or an array of numbers, and 1 to 1024 bins."
MOST_BINS = 1024
ALONE = "value"
"""The name of a tensor that is saved alone."""


def object_encoding(value: Any) -> tuple[str, bytes]:
    """Tensors as safetensors, plain values as JSON, both in containers as a file that torch loads with `weights_only`.
    Raises StepMisuse: it is made of anything else."""
    plain = _plain(value)
    if isinstance(plain, Tensor):
        plain = {ALONE: plain}
    if isinstance(plain, dict) and plain and all(_fits(*entry) for entry in plain.items()):
        try:
            return "safetensors", safetensors_of({name: each.contiguous() for name, each in plain.items()})
        except (SafetensorError, KeyError, ValueError, RuntimeError):
            pass  # of a type that the format does not have
    if (text := _json(plain)) is not None:
        return "json", text
    file = io.BytesIO()
    torch.save(plain, file)
    return "pt", file.getvalue()


def text_encoding(text: Any) -> tuple[str, bytes]:
    """UTF-8. Raises StepMisuse: it is no text."""
    if not isinstance(text, str):
        raise StepMisuse(
            f"session.log_text got a {type(text).__name__}.",
            hint="Give a str: session.log_text('notes', str(value)).",
        )
    return "txt", text.encode("utf-8", "replace")


def image_encoding(image: Any, channels: str | None = None) -> tuple[str, bytes]:
    """PNG. Raises StepMisuse: it is no image.

    Args:
        channels: the dimension that they are, "first" or "last"; None: first in a tensor, last in an array.
    """
    from PIL import Image  # only here: it takes its time

    if channels not in (None, "first", "last"):
        raise StepMisuse(f"session.log_image got channels={channels!r:.40}.", hint=IMAGE_HINT)
    picture = image if isinstance(image, Image.Image) else Image.fromarray(_pixels(image, channels))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "png", file.getvalue()


def histogram_encoding(values: Any, bins: int) -> tuple[str, bytes]:
    """JSON: counts between edges. Raises StepMisuse: there are no numbers, or not 1 to 1024 bins."""
    numbers = _array("log_histogram", values, HISTOGRAM_HINT)
    if not isinstance(bins, int) or not 1 <= bins <= MOST_BINS or not np.issubdtype(numbers.dtype, np.number):
        raise StepMisuse(
            f"session.log_histogram got values of {numbers.dtype} and bins={bins!r:.40}.", hint=HISTOGRAM_HINT
        )
    flat = numbers.astype(np.float64).reshape(-1)
    finite = flat[np.isfinite(flat)]
    counts, edges = np.histogram(finite, bins=bins) if len(finite) else (np.zeros(0, int), np.zeros(0))
    told = {
        "count": len(finite),
        "not_finite": len(flat) - len(finite),
        "minimum": float(finite.min()) if len(finite) else None,
        "maximum": float(finite.max()) if len(finite) else None,
        "mean": float(finite.mean()) if len(finite) else None,
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }
    return "json", json.dumps(told).encode()


def _plain(value: Any) -> Any:
    """The same value of plain types alone, its tensors in host memory without a graph. Raises StepMisuse."""
    if isinstance(value, Tensor):
        value = value.detach()
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise StepMisuse(
                f"session.save got a tensor of layout {value.layout} and {value.dtype}.",
                hint="Save dense tensors.",
            )
        # A copy: what is saved of a view is its own elements, and later steps change the original.
        return value.cpu().clone(memory_format=torch.contiguous_format)
    if isinstance(value, np.ndarray | np.generic):
        try:
            return torch.from_numpy(np.array(value))
        except TypeError:
            raise StepMisuse(f"session.save got an array of {value.dtype}.", hint=OBJECT_HINT) from None
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, Mapping):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    raise StepMisuse(
        f"session.save got a {type(value).__name__}, which a file without pickled code cannot hold.",
        hint=OBJECT_HINT,
    )


def _key(key: Any) -> Any:
    if type(key) in (str, int):
        return key
    raise StepMisuse(
        f"session.save got a dict with the key {key!r:.120}.", hint="Keys are texts or whole numbers."
    )


def _fits(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor)


def _json(plain: Any) -> bytes | None:
    """The value as JSON; None where that would not bring it back."""
    try:
        text = json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return text.encode() if json.loads(text) == plain else None


def _array(call: str, value: Any, hint: str) -> np.ndarray:
    if isinstance(value, Tensor) and (value := value.detach()).layout is torch.strided and not value.is_meta:
        value = value.cpu()
        value = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    if not isinstance(value, np.ndarray):
        raise StepMisuse(f"session.{call} got a {type(value).__name__}.", hint=hint)
    return value


def ambiguous_channels(image: Any) -> str:
    """How an image is read whose first dimension and whose last may both be channels; empty where that is plain."""
    ends = image.shape[::2] if isinstance(image, Tensor | np.ndarray) and image.ndim == 3 else ()
    if not ends or not all(size in CHANNELS for size in ends):
        return ""
    return "first" if isinstance(image, Tensor) else "last"


def _pixels(image: Any, place: str | None) -> np.ndarray:
    """(height, width) or (height, width, 3 or 4) uint8."""
    pixels = _array("log_image", image, IMAGE_HINT)
    shape = pixels.shape
    first = isinstance(image, Tensor) if place is None else place == "first"
    if first and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim not in (2, 3) or channels not in CHANNELS or not pixels.size:
        raise StepMisuse(f"session.log_image got the shape {tuple(shape)}.", hint=IMAGE_HINT)
    if np.issubdtype(pixels.dtype, np.floating):
        if not (math.isfinite(pixels.sum()) and pixels.min() >= 0 and pixels.max() <= 1):
            raise StepMisuse("session.log_image got fractions that are not all from 0 to 1.", hint=IMAGE_HINT)
        pixels = np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise StepMisuse(f"session.log_image got pixels of {pixels.dtype}.", hint=IMAGE_HINT)
    return np.ascontiguousarray(pixels)
