"""The encodings of MDS columns: many values of a column at once, as an Arrow array.

Format: https://github.com/mosaicml/streaming/blob/main/streaming/base/format/mds/encodings.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

NUMBERS = {
    **{8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32"},
    **{34: "float32", 64: "uint64", 65: "int64", 66: "float64"},
}
"""By the byte that stands for it before an array, the type of the array's values."""

TEXTS: dict[str, tuple[pa.DataType, Callable[[str], object]]] = {
    "str": (pa.string(), str),
    "json": (pa.string(), str),
    "str_int": (pa.int64(), int),
    "str_float": (pa.float64(), float),
}
"""By encoding, the type of what stands there as text, and its reading."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An Arrow type, and the function that makes values of it from encoded ones."""

    type: pa.DataType
    values: Callable[[Sequence[bytes]], object]

    def decode(self, encoded: Sequence[bytes]) -> pa.Array:
        """Raises ValueError, IndexError or pa.ArrowException where the bytes are not of this encoding."""
        return pa.array(self.values(encoded), self.type)


def encoding_of(name: str, sample: Callable[[], bytes]) -> Encoding | None:
    """The encoding of that name (`int`, `ndarray:float32:3,4`); None where it is not read here.

    Args:
        sample: reads an encoded value, which says the type and the dimensions of an array whose name does not.
    """
    kind, _, details = name.partition(":")
    if kind in ("bytes", "jpeg", "png"):
        return Encoding(pa.binary(), list)
    if kind in TEXTS:
        text, parse = TEXTS[kind]
        return Encoding(text, partial(_parsed, parse))
    if kind == "ndarray":
        return _array(_Layout.of(details), sample)
    number = {"int": "int64", "float": "float64"}.get(kind, kind)
    if number not in NUMBERS.values():
        return None
    return Encoding(pa.type_for_alias(number), partial(_numbers, number))


def _parsed(parse: Callable[[str], object], encoded: Sequence[bytes]) -> list[object]:
    return [parse(each.decode()) for each in encoded]


def _numbers(number: str, encoded: Sequence[bytes]) -> np.ndarray:
    values = np.frombuffer(b"".join(encoded), _stored(number))
    if len(values) != len(encoded):
        raise ValueError(f"{len(encoded)} values of {number} have {values.nbytes} bytes")
    return values


@dataclass(frozen=True, slots=True)
class _Layout:
    """The type of the values of arrays, and their shape, as the name of an encoding fixes them; "" and () if not."""

    number: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, details: str) -> "_Layout":
        number, _, sizes = details.partition(":")
        if number and number not in NUMBERS.values():
            raise ValueError(f"unknown type {number!r}")
        return cls(number, tuple(int(size) for size in sizes.split(",")) if sizes else ())

    def read(self, encoded: bytes) -> np.ndarray:
        """One array. What its name does not fix stands before the values."""
        at, number, shape = 0, self.number, self.shape
        if not number:
            number, at = NUMBERS[encoded[0]], 1
        if not shape:
            # The number of dimensions, and in the lowest two bits the width of each.
            count, width = encoded[at] >> 2, 1 << (encoded[at] & 3)
            shape = tuple(np.frombuffer(encoded[at + 1 : at + 1 + count * width], f"<u{width}").tolist())
            at += 1 + count * width
        return np.frombuffer(encoded[at:], _stored(number)).reshape(shape)


def _array(layout: _Layout, sample: Callable[[], bytes]) -> Encoding:
    """Lists in lists, as many as an array has dimensions: of fixed sizes where its shape is fixed."""
    first = None if layout.number and layout.shape else layout.read(sample())
    number = layout.number or str(first.dtype if first is not None else "")
    kind = pa.type_for_alias(number)
    for size in reversed(layout.shape or (-1,) * (first.ndim if first is not None else 0)):
        kind = pa.list_(kind, size)
    return Encoding(kind, partial(_arrays, layout, number))


def _arrays(layout: _Layout, number: str, encoded: Sequence[bytes]) -> object:
    arrays = [layout.read(each) for each in encoded]
    found = {str(each.dtype) for each in arrays}
    if found - {number}:
        raise ValueError(f"arrays of {number} among others of {', '.join(sorted(found - {number}))}")
    if layout.shape:
        values = pa.array(np.concatenate([each.reshape(-1) for each in arrays]))
        for size in reversed(layout.shape):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        return values
    # pyarrow makes lists of numpy's arrays with one dimension only.
    return arrays if all(each.ndim == 1 for each in arrays) else [each.tolist() for each in arrays]


def _stored(number: str) -> np.dtype:
    return np.dtype(number).newbyteorder("<")
