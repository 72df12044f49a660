"""TensorBoard's event files: records with checksums, each an Event of protocol buffers with scalars. Pure.

Written by hand: the packages that write them open a file, start threads and bring their own clock, and of the format
six fields are needed. Records as in tensorflow/core/lib/io/record_writer.cc: the length (uint64), its checksum, the
Event, its checksum, all little-endian. Fields as in tensorflow/core/util/event.proto and framework/summary.proto.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION = "brain.Event:2"
_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8
# Field numbers and wire types: 0 varint, 1 eight bytes, 2 a length and so many bytes, 5 four bytes.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1 << 3 | 1, 2 << 3 | 0, 3 << 3 | 2, 5 << 3 | 2
_VALUE, _TAG, _SIMPLE_VALUE = 1 << 3 | 2, 1 << 3 | 2, 2 << 3 | 5


@dataclass(frozen=True, slots=True)
class Scalars:
    """The values of one step by their names; `at` in Unix seconds."""

    at: float
    step: int
    values: Mapping[str, float]


def head(at: float) -> bytes:
    """The record that an event file begins with."""
    return _records([_wall_time(at) + _bytes(_FILE_VERSION, VERSION.encode())])


def records(scalars: Sequence[Scalars]) -> bytes:
    """Records of these, in their order. Values are kept in single precision, as TensorBoard does."""
    return _records([_event(one) for one in scalars])


def checksums(parts: Sequence[bytes]) -> list[int]:
    """The masked CRC-32C of each part (RFC 3720, appendix B.4; the mask is TensorFlow's)."""
    import numpy as np

    lengths = np.array([len(part) for part in parts], np.int64)
    # The longest first: at each byte, those that go on are the first so many. Padded to one length, a step of a
    # thousand metrics among steps of one would take as many times its bytes.
    order = np.argsort(-lengths, kind="stable")
    begins = (np.cumsum(lengths) - lengths)[order]
    going = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")
    content = np.frombuffer(b"".join(parts), np.uint8)
    table, crc = _table(), np.full(len(parts), 0xFFFFFFFF, np.uint32)
    # All parts go on by one byte at a time, which Python would do thirty times slower one by one.
    for at, many in enumerate(going):
        before = crc[:many]
        crc[:many] = table[(before ^ content[begins[:many] + at]) & 0xFF] ^ (before >> 8)
    crc[order] = crc.copy()
    found = (int(one) ^ 0xFFFFFFFF for one in crc)
    return [(((one >> 15) | (one << 17)) + _MASK) & 0xFFFFFFFF for one in found]


def _records(events: Sequence[bytes]) -> bytes:
    lengths = [struct.pack("<Q", len(event)) for event in events]
    of_lengths, of_events = checksums(lengths), checksums(events)
    return b"".join(
        length + struct.pack("<I", of_length) + event + struct.pack("<I", of_event)
        for length, of_length, event, of_event in zip(lengths, of_lengths, events, of_events, strict=True)
    )


def _event(one: Scalars) -> bytes:
    summary = b"".join(
        _bytes(_VALUE, _bytes(_TAG, name.encode()) + bytes([_SIMPLE_VALUE]) + _single(value))
        for name, value in one.values.items()
    )
    return _wall_time(one.at) + bytes([_STEP]) + _varint(one.step) + _bytes(_SUMMARY, summary)


def _wall_time(at: float) -> bytes:
    return bytes([_WALL_TIME]) + struct.pack("<d", at)


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field]) + _varint(len(content)) + content


def _single(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # beyond what four bytes hold
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


@cache
def _table() -> "NDArray[np.uint32]":
    import numpy as np

    found = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        found = np.where(found & 1, found >> 1 ^ np.uint32(_CASTAGNOLI), found >> 1)
    return found
