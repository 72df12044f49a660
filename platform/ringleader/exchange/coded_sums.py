"""Sums of coded gradients: every worker sends each owner its span encoded, the owner sends the sum back encoded.

The owner decodes what arrives, adds in rank order in float32 and encodes the result once. Everybody, the owner too,
takes the decoded result, so all members hold the same bits. Of c bytes for every byte of the bucket a rank sends
2(P-1)/P·c, as `direct` does with c = 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.buckets import Bucket, Buckets
from ringleader.comm.codecs import CODECS, POWERSGD, RAW, Codec, powersgd
from ringleader.comm.codecs.messages import CodecRun, CodedMessage, MessagePiece, messages
from ringleader.comm.executor import Scratch
from ringleader.comm.schedules.schedule import PARTIALS, RESULTS, Span, size
from ringleader.comm.transports import Transport
from ringleader.comm.transports.transport import Work
from ringleader.exchange.error_feedback import ErrorFeedback, ParameterResidual
from ringleader.exchange.powersgd_sums import FactorSums

LEAST_BYTES = 64 << 10
"""Smaller parameters go as they are, and so do vectors: biases and norms are little to send and much to lose."""


@dataclass(slots=True)
class Coding:
    """The codec of a job and the residuals that a worker owes under it.

    Attributes:
        codec: the name of a registered codec.
        names: the names of the exchanged parameters, in their order.
        wire_bytes: bytes of coded gradients that this worker has sent to its peers, indices and scales included.
    """

    codec: str
    names: Sequence[str]
    residuals: ErrorFeedback = field(default_factory=ErrorFeedback)
    wire_bytes: int = 0

    def sent(self, nbytes: int) -> None:
        """Count bytes that this worker has sent."""
        self.wire_bytes += nbytes

    def heal(self, steps: int) -> None:
        """Settle the residuals for a state that is `steps` further than this worker's own."""
        # Its messages of that one step are in the sum that others applied, and what they lost with them.
        if steps == 1:
            self.residuals.commit()
        else:
            self.residuals.roll_back()


def is_coded(parameter: Parameter, codec: str) -> bool:
    """Whether the codec is used for this parameter's gradient."""
    large = parameter.dtype == torch.float32 and parameter.dim() > 1 and parameter.nbytes >= LEAST_BYTES
    return large and (codec != POWERSGD or powersgd.is_worth_it(parameter.shape))


class SumMethod(Protocol):
    """The way in which one bucket is summed."""

    def sum(
        self,
        row: Tensor,
        parameter_residuals: dict[CodecRun, ParameterResidual],
        scratch: Scratch,
        transport: Transport,
        tag: int,
    ) -> int:
        """Leave the sum in `row`, equal on all ranks, and what is lost in `parameter_residuals`. Returns the bytes
        sent."""


class CodedSums:
    """The coded sums of one generation; alone (a world of one) nothing is encoded."""

    def __init__(self, coding: Coding, buckets: Buckets, *, rank: int, world: int) -> None:
        self._coding = coding
        self._residuals = coding.residuals
        self._buckets = buckets
        self.codec = coding.codec
        self._feedback = coding.codec == POWERSGD or CODECS[coding.codec].feedback
        cut = {bucket.number: _runs(bucket, buckets.parameters, coding.codec) for bucket in buckets.buckets}
        self._runs = {number: runs for number, runs in cut.items() if any(run.member >= 0 for run in runs)}
        self._ways = {number: self._way(number, runs, rank, world) for number, runs in self._runs.items()}

    def takes(self, bucket: Bucket) -> bool:
        """Whether something in the bucket is coded; the others are summed as without a codec."""
        return bucket.number in self._runs

    def begin_step(self) -> None:
        self._residuals.roll_back()

    def end_step(self) -> None:
        """Commit the residuals of the step: everybody's gradients are here."""
        self._residuals.commit()

    def abandon(self) -> None:
        """Give up the residuals of the step, and their memory."""
        # The communication thread, which did not end, may still write into it.
        self._residuals.abandon()

    def alone(self, bucket: Bucket) -> None:
        """Make the sum of a lone worker: its gradient and all it owes."""
        row = bucket.row(0)
        for run, residual in self._open(bucket).items():
            values = row[slice(*run.span)]
            residual.claim(values)
            # Nothing is lost on the way, so that what `claim` has added is owed no more.
            residual.keep(values, values, (0, size(run.span)))

    def work(self, bucket: Bucket, tag: int) -> Callable[[Scratch, Transport], None]:
        """The communication thread's work on a bucket, which leaves the sum in row 0."""
        parameter_residuals = self._open(bucket)
        row, way = bucket.row(0), self._ways[bucket.number]

        def act(scratch: Scratch, transport: Transport) -> None:
            for run, residual in parameter_residuals.items():
                residual.claim(row[slice(*run.span)])
            self._coding.sent(way.sum(row, parameter_residuals, scratch, transport, tag))

        return act

    def _open(self, bucket: Bucket) -> dict[CodecRun, ParameterResidual]:
        """The residuals of the bucket's parameters in this step."""
        parameter_residuals = {}
        for run in self._runs[bucket.number]:
            if self._feedback and run.member >= 0:
                number = bucket.members[run.member]
                gradient = bucket.row(0)[slice(*run.span)]
                parameter_residuals[run] = self._residuals.open(
                    self._coding.names[number], gradient, joins=self._buckets.used[number]
                )
        return parameter_residuals

    def _way(self, number: int, runs: Sequence[CodecRun], rank: int, world: int) -> SumMethod:
        if self._coding.codec != POWERSGD:
            return CodedMessages(messages(runs, world))
        numbers = self._buckets.buckets[number].members
        matrices = [
            (
                run,
                self._coding.names[numbers[run.member]],
                self._buckets.parameters[numbers[run.member]].shape,
            )
            for run in runs
            if run.member >= 0
        ]
        plain = [run for run in runs if run.member < 0]
        # The root goes by the bucket's number, so that the ranks share the work of roots.
        return FactorSums(matrices, plain, rank=rank, world=world, root=number % world)


def _runs(bucket: Bucket, parameters: Sequence[Parameter], name: str) -> list[CodecRun]:
    """The runs of a bucket: each coded parameter by itself, neighbours that are not coded together."""
    # PowerSGD is not among them: it sums factors, and nothing encodes its runs one by one.
    codec: Codec = CODECS.get(name, RAW)
    runs: list[CodecRun] = []
    for member, number in enumerate(bucket.members):
        span = bucket.starts[member], bucket.starts[member + 1]
        if is_coded(parameters[number], name):
            runs.append(CodecRun(span, codec, member))
        elif runs and runs[-1].member < 0:
            runs[-1] = CodecRun((runs[-1].span[0], span[1]), RAW)
        else:
            runs.append(CodecRun(span, RAW))
    return runs


@dataclass(frozen=True, slots=True)
class CodedMessages:
    """The sum by one message after another to each owner, and its answer to all. Implements SumMethod."""

    owned: Sequence[Sequence[CodedMessage]]

    def sum(
        self,
        row: Tensor,
        parameter_residuals: dict[CodecRun, ParameterResidual],
        scratch: Scratch,
        transport: Transport,
        tag: int,
    ) -> int:
        exchange = _Sum(row, parameter_residuals, scratch, transport, tag)
        exchange.run(self.owned)
        return exchange.sent_bytes


class _Sum:
    """One bucket's coded sum in progress."""

    def __init__(
        self,
        row: Tensor,
        parameter_residuals: dict[CodecRun, ParameterResidual],
        scratch: Scratch,
        transport: Transport,
        tag: int,
    ) -> None:
        self.sent_bytes = 0
        self._row = row
        self._parameter_residuals = parameter_residuals
        self._scratch = scratch
        self._transport = transport
        self._tag = tag
        self._wire = row.new_empty(0, dtype=torch.uint8)
        self._slots = 0
        self._leaving: list[Work] = []

    def run(self, owned: Sequence[Sequence[CodedMessage]]) -> None:
        rank, world = self._transport.rank, self._transport.size
        peers = [(rank + k) % world for k in range(1, world)]
        # Receives before sends: over one connection notice of them would queue behind the data.
        partials = {peer: [self._receive(m, peer, PARTIALS) for m in owned[rank]] for peer in peers}
        for peer in peers:
            for message in owned[peer]:
                self._send(self._encode(message, self._row), [peer], PARTIALS)
        # Before the own sum is made: a quicker peer may have sent its result by then.
        results = [(m, self._receive(m, peer, RESULTS)) for peer in peers for m in owned[peer]]
        for k, message in enumerate(owned[rank]):
            self._add(message, {peer: arriving[k] for peer, arriving in partials.items()})
            self._send(self._encode(message, self._row, take=True), peers, RESULTS)
        for message, (memory, work) in results:
            work.wait()
            for piece in message.pieces:
                piece.run.codec.decode(memory[piece.bytes], self._row[slice(*piece.span)])
        for work in self._leaving:
            work.wait()

    def _add(self, message: CodedMessage, arriving: dict[int, tuple[Tensor, Work]]) -> None:
        """Leave the sum of all ranks' values in the own span's row, added in rank order."""
        for peer in sorted(arriving):
            arriving[peer][1].wait()
        for piece in message.pieces:
            mine = self._row[slice(*piece.span)]
            # Beside the row: until its place in the order comes, the own part of the sum must stay as it is.
            total, term = (self._scratch.slot(k, mine.numel(), like=mine) for k in (0, 1))
            for rank in range(self._transport.size):
                if rank in arriving:
                    piece.run.codec.decode(arriving[rank][0][piece.bytes], term)
                # In rank order, wherever this rank stands: not in the order of arrival, which changes bits.
                values = term if rank in arriving else mine
                total.copy_(values) if rank == 0 else total.add_(values)
            mine.copy_(total)

    def _encode(self, message: CodedMessage, row: Tensor, *, take: bool = False) -> Tensor:
        """The message of this row's values, whose error is owed from then on; `take`: the row becomes what the message
        decodes to."""
        memory = self._slot(message)
        for piece in message.pieces:
            values, encoded = row[slice(*piece.span)], memory[piece.bytes]
            piece.run.codec.encode(values, encoded)
            residual = self._parameter_residuals.get(piece.run)
            # Nothing asks what the message decodes to.
            if residual is None and not take:
                continue
            decoded = self._scratch.slot(0, values.numel(), like=values)
            piece.run.codec.decode(encoded, decoded)
            if residual is not None:
                residual.keep(values, decoded, _within(piece))
            if take:
                values.copy_(decoded)
        return memory

    def _receive(self, message: CodedMessage, peer: int, channel: int) -> tuple[Tensor, Work]:
        memory = self._slot(message)
        return memory, self._transport.irecv(memory, peer, self._tag + channel)

    def _send(self, memory: Tensor, peers: Sequence[int], channel: int) -> None:
        for peer in peers:
            self._leaving.append(self._transport.isend(memory, peer, self._tag + channel))
            self.sent_bytes += memory.nbytes

    def _slot(self, message: CodedMessage) -> Tensor:
        """Memory for a message, which is this bucket's until all its transfers are done."""
        self._slots += 1
        # By its dtype apart from the slots of `_add` and `_encode`, which have the same numbers.
        return self._scratch.slot(self._slots, message.nbytes, like=self._wire)


def _within(piece: MessagePiece) -> Span:
    """The piece's span in its parameter."""
    start = piece.run.span[0]
    return piece.span[0] - start, piece.span[1] - start
