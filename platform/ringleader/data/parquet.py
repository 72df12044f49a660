"""A map-style dataset over Parquet: any row at any time, read by row group, values ready to be stacked."""

import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ringleader.data.copies import NodeCopies
from ringleader.data.row_groups import RowGroups
from ringleader.data.unreadable import RowUnreadable

Decoder = Callable[[bytes], Tensor]
"""The bytes of one value to one tensor."""
Source = str | PathLike[str]
Row = dict[str, Any]


class ParquetDataset(Dataset[Row]):
    """Rows of one or many Parquet files as dicts, by position.

    Integers and booleans come as Python numbers (a batch of them is int64 or bool), floats and lists
    of numbers as tensors of their own width, strings and bytes as they are, decoded columns as decoded.

    Args:
        source: a path, a folder, a URI of a pyarrow file system (`s3://…`), or a list of them, in order.
        columns: which columns to read; all when None.
        decode: a function from bytes to tensor for each column that holds encoded bytes, for example
            {"image": ringleader.data.decode_image}. A module-level function can be pickled with the dataset.
        keep_decoded: keep every row after its first read; for sets that fit in memory. Rows are then shared
            between reads: do not change them in place.
        cache_bytes: how much of the read row groups to keep, per process.

    Raises:
        FileNotFoundError, KeyError, ValueError: no file, no such column, files that do not fit together.
        RowUnreadable: at access, naming column and row.
    """

    def __init__(
        self,
        source: Source | Sequence[Source],
        *,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, Decoder] | None = None,
        keep_decoded: bool = False,
        cache_bytes: int = 256 << 20,
    ) -> None:
        sources = [source] if isinstance(source, str | PathLike) else list(source)
        self._groups = RowGroups([fspath(s) for s in sources], columns, cache_bytes)
        self._decode = dict(decode or {})
        unknown = sorted(set(self._decode) - set(self._groups.columns))
        if unknown:
            raise KeyError(f"decode names {unknown}, but the columns read are {self._groups.columns}")
        self._kept: dict[int, Row] | None = {} if keep_decoded else None
        self._copied = False

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types, and the metadata of the first file."""
        return self._groups.schema

    @property
    def decode(self) -> Mapping[str, Decoder]:
        """By column, the function that makes a tensor of bytes."""
        return self._decode

    def read_copies(self, copies: NodeCopies) -> None:
        """Read this node's copies of the files from now on. A session calls it where the job's data is `replicated`.

        Raises:
            CopyFailed: with the source and the reason.
        """
        if not self._copied:
            self._groups.read_copies(copies)
            self._copied = True

    def __len__(self) -> int:
        return self._groups.total_rows

    def __getitem__(self, row: int) -> Row:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """Many rows at once, in the order asked for; each row group is read at most once."""
        numbers = [self._position(row) for row in rows]
        kept = self._kept if self._kept is not None else {}
        found = {n: kept[n] for n in set(numbers) if n in kept}
        found.update(self._load(sorted(set(numbers) - set(found))))
        if self._kept is not None:
            self._kept.update(found)
        return [found[n] for n in numbers]

    def __getstate__(self) -> dict[str, Any]:
        # A loading process keeps rows of its own: those kept here would only make the pickle large.
        return {**self.__dict__, "_kept": None if self._kept is None else {}}

    def _position(self, row: int) -> int:
        size = len(self)
        if not -size <= row < size:
            raise IndexError(f"row {row} of a dataset with {size} rows")
        return int(row) % size

    def _load(self, rows: Sequence[int]) -> dict[int, Row]:
        by_group: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by_group[self._groups.find(row)].append(row)
        loaded: dict[int, Row] = {}
        for group, members in by_group.items():
            loaded.update(self._load_group(group, members))
        return loaded

    def _load_group(self, group: int, rows: Sequence[int]) -> dict[int, Row]:
        first = self._groups.groups[group].first_row
        taken = self._groups.read(group).take(pa.array([row - first for row in rows]))
        values = {name: self._values(name, taken[name], rows) for name in taken.column_names}
        return {row: {name: values[name][i] for name in values} for i, row in enumerate(rows)}

    def _values(self, name: str, column: pa.ChunkedArray, rows: Sequence[int]) -> list[Any]:
        values = column.to_pylist()
        if None in values:
            raise RowUnreadable(name, rows[values.index(None)], "it is null")
        if name in self._decode:
            return [self._decoded(name, value, row) for value, row in zip(values, rows, strict=True)]
        return _tensors(values, column.type)

    def _decoded(self, name: str, value: bytes, row: int) -> torch.Tensor:
        try:
            return self._decode[name](value)
        # Decoders are the program's own, so that any kind of error may come.
        except Exception as error:
            raise RowUnreadable(name, row, str(error)) from error


def _tensors(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Floats and lists as tensors of the column's own type; everything else as it is."""
    if pa.types.is_floating(kind):
        return list(torch.tensor(values, dtype=_dtype(kind)).unbind())
    leaf = _leaf(kind)
    if leaf is not kind and (pa.types.is_floating(leaf) or pa.types.is_integer(leaf)):
        return [torch.tensor(value, dtype=_dtype(leaf)) for value in values]
    return values


def _leaf(kind: pa.DataType) -> pa.DataType:
    """The type of the innermost lists' values; the type itself where it is no list."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _dtype(kind: pa.DataType) -> torch.dtype:
    """torch's name for a pyarrow number."""
    # pyarrow calls 16 bits halffloat, and all other numbers as torch does.
    dtype: torch.dtype = getattr(torch, {"halffloat": "half"}.get(str(kind), str(kind)))
    return dtype


def decode_image(encoded: bytes) -> Tensor:
    """JPEG, PNG or whatever Pillow reads → (C, H, W) uint8; one channel if grey, else three."""
    with Image.open(io.BytesIO(encoded)) as image:
        pixels = np.array(image if image.mode in {"L", "RGB"} else image.convert("RGB"))  # (H, W[, 3])
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(planes))


def decode_image_float(encoded: bytes) -> Tensor:
    """As `decode_image`, but (C, H, W) float32 in 0..1."""
    return decode_image(encoded).float() / 255
