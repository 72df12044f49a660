"""The coded messages of a bucket: the pieces that each rank owns, and the place of each in its message."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringleader.comm.codecs.codec import Codec, ceiling
from ringleader.comm.schedules.schedule import Span, chunks, even_spans, size

CHUNK = 1 << 18
"""The most elements in one message: it fits the cache, and the next one is encoded while it travels."""

ALIGN_BYTES = 4  # as `Codec.encode` demands of its memory


@dataclass(frozen=True, slots=True)
class CodecRun:
    """Neighbouring elements of a bucket under one codec.

    Attributes:
        member: the index of the bucket's parameter of which this is all; -1: several that go uncoded.
    """

    span: Span
    codec: Codec
    member: int = -1


@dataclass(frozen=True, slots=True)
class MessagePiece:
    """A part of a run inside a message.

    Attributes:
        span: in the bucket.
        offset: its first byte in the message.
    """

    run: CodecRun
    span: Span
    offset: int

    @property
    def bytes(self) -> slice:
        return slice(self.offset, self.offset + self.run.codec.size(size(self.span)))


@dataclass(frozen=True, slots=True)
class CodedMessage:
    """Pieces that travel together."""

    pieces: tuple[MessagePiece, ...]
    nbytes: int


def messages(
    runs: Sequence[CodecRun], world: int, chunk: int = CHUNK
) -> tuple[tuple[CodedMessage, ...], ...]:
    """The messages that carry what each rank owns, by rank: an even part of every run."""
    return tuple(tuple(_fill(_pieces(runs, world, rank, chunk), chunk)) for rank in range(world))


def _pieces(runs: Sequence[CodecRun], world: int, rank: int, chunk: int) -> Iterator[tuple[CodecRun, Span]]:
    for run in runs:
        start, stop = even_spans(size(run.span), world)[rank]
        for piece in chunks((run.span[0] + start, run.span[0] + stop), chunk):
            yield run, piece


def _fill(pieces: Iterator[tuple[CodecRun, Span]], chunk: int) -> Iterator[CodedMessage]:
    filling: list[MessagePiece] = []
    elements = offset = 0
    for run, span in pieces:
        if filling and elements + size(span) > chunk:
            yield CodedMessage(tuple(filling), offset)
            filling, elements, offset = [], 0, 0
        filling.append(MessagePiece(run, span, offset))
        elements += size(span)
        offset += ceiling(run.codec.size(size(span)), ALIGN_BYTES) * ALIGN_BYTES
    if filling:
        yield CodedMessage(tuple(filling), offset)
