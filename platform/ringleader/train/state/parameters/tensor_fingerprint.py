"""Fingerprints of tensors: digests of their bits, of large ones of sums of them."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from ringleader.train.device.host_copy import HostCopy

PRINT_BYTES = 8

WHOLE_BYTES = 1 << 16
"""A tensor up to this size is hashed as it is; of a larger one the sums of its words are, ten times as fast."""

WORD_BYTES = 8
COLUMNS, ROWS = 511, 255
"""Words in a row and rows in a block, which fits into a core's cache. Both are odd: a change of the same highest bit in
every word (float64 weights that are negated) would vanish in a sum of an even number of them."""


def fingerprint(tensor: Tensor) -> bytes:
    """A digest, of PRINT_BYTES, of the tensor's type, shape and bits.

    Of a large tensor the sums of each row of words and of each column of a block are hashed. Two that differ have the
    same digest only where changes cancel along rows and columns alike: nothing that a program does to weights.
    """
    return HashedBits(tensor).digest()


class HashedBits:
    """The bits of a tensor, or the sums of them, that are hashed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._digest: bytes | None = None
        self._sent: list[HostCopy] = []
        if tensor.is_cuda:
            words, raw = _bits_of(tensor)
            self._sent = [HostCopy(part) for part in (*_sums_on_device(words), raw)]

    def digest(self) -> bytes:
        if self._digest is None:
            kind = f"{self._tensor.dtype}{self._tensor.shape}".encode()
            digest = hashlib.blake2b(kind, digest_size=PRINT_BYTES)
            if self._sent:
                *sums, raw = [copy.read() for copy in self._sent]
                pairs = _in_blocks(*sums) if sums else iter(())
            else:
                # Only now: bits in another order are a copy, of which there is one at a time.
                words, raw = _bits_of(self._tensor)
                pairs = _sums(words)
            for rows, columns in pairs:
                digest.update(rows.numpy().data)
                digest.update(columns.numpy().data)
            digest.update(raw.numpy().data)
            self._digest = digest.digest()
        return self._digest


def bytes_of(tensor: Tensor) -> Tensor:
    """The (n,) uint8 bits of a tensor of any layout in memory, of a lazily conjugated or negated one those of its
    values."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _bits_of(tensor: Tensor) -> tuple[Tensor | None, Tensor]:
    """The (rows, COLUMNS) int64 words of a large tensor, and (n,) uint8 behind them; None and all of a small one."""
    raw = bytes_of(tensor)
    if raw.numel() <= WHOLE_BYTES:
        return None, raw
    # A view of bytes as int64 needs an offset that is a multiple of 8.
    raw = raw if raw.storage_offset() % WORD_BYTES == 0 else raw.clone()
    full = raw.numel() // (COLUMNS * WORD_BYTES)
    summed = full * COLUMNS * WORD_BYTES
    return raw[:summed].view(torch.int64).view(full, COLUMNS), raw[summed:]


def _sums(words: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The sums of the rows and of the columns of each block of (rows, COLUMNS) words."""
    for start in range(0, 0 if words is None else len(words), ROWS):
        assert words is not None
        block = words[start : start + ROWS]
        # Sums of integers wrap around at 64 bits, and are the same in any order.
        yield block.sum(dim=1), block.sum(dim=0)


def _sums_on_device(words: Tensor | None) -> list[Tensor]:
    """(rows,) sums of all rows, and (blocks, COLUMNS) sums of the columns of all blocks, by a few kernels."""
    if words is None:
        return []
    whole = len(words) // ROWS * ROWS
    columns = words[:whole].view(-1, ROWS, COLUMNS).sum(dim=1)
    rest = [words[whole:].sum(dim=0, keepdim=True)] if whole < len(words) else []
    return [words.sum(dim=1), torch.cat([columns, *rest])]


def _in_blocks(rows: Tensor, columns: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The same sums, block by block."""
    return zip(torch.split(rows, ROWS), columns, strict=True)
