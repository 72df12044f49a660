"""The executor: runs the steps of a schedule on tensors over a transport."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ringleader.comm.schedules.schedule import Add, Receive, Send, Span, Step, Zero, size
from ringleader.comm.transports.transport import Transport, Work

Transfers = dict[int, list[tuple[Span, Work]]]


class Scratch:
    """The means that one thread reuses from bucket to bucket: memory for chunks in flight, in numbered slots, and a
    stream of each device."""

    def __init__(self) -> None:
        self._slots: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """This thread's stream of a CUDA device."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    def slot(self, number: int, elements: int, like: Tensor) -> Tensor:
        """Slot `number`, (elements,) of the dtype and device of `like`; its content is whatever a step left there."""
        slots = self._slots[like.dtype, like.device]
        while len(slots) <= number:
            slots.append(like.new_empty(elements))
        if slots[number].numel() < elements:
            slots[number] = like.new_empty(elements)
        return slots[number][:elements]


def execute(
    steps: Sequence[Step], rows: Sequence[Tensor], scratch: Scratch, transport: Transport, tag: int
) -> None:
    """Run one rank's steps; returns when every transfer is done.

    Args:
        rows: (length,) tensors, the places 0, 1, ... of the steps.
        tag: channels c of the steps travel as tag + c.

    Raises:
        ExchangeBroken: from the transport.
    """
    run = _Run(rows, scratch, transport, tag)
    for step in steps:
        match step:
            case Receive():
                run.receive(step)
            case Send():
                run.send(step)
            case Add():
                run.add(step)
            case Zero():
                run.memory(step.place, step.span).zero_()
    run.finish()


class _Run:
    """The transfers in flight, by place: a step waits for those that touch its span."""

    def __init__(self, rows: Sequence[Tensor], scratch: Scratch, transport: Transport, tag: int) -> None:
        self._rows = rows
        self._scratch = scratch
        self._transport = transport
        self._tag = tag
        self._arriving: Transfers = defaultdict(list)
        self._leaving: Transfers = defaultdict(list)

    def memory(self, place: int, span: Span) -> Tensor:
        if place >= 0:
            return self._rows[place][span[0] : span[1]]
        return self._scratch.slot(-1 - place, size(span), like=self._rows[0])

    def receive(self, step: Receive) -> None:
        memory = self.memory(step.place, step.span)
        # No wait for sends out of this memory: a peer sends what arrives there only after it has got them.
        work = self._transport.irecv(memory, step.peer, self._tag + step.channel)
        self._arriving[step.place].append((step.span, work))

    def send(self, step: Send) -> None:
        _wait(self._arriving, step.place, step.span)
        memory = self.memory(step.place, step.span)
        work = self._transport.isend(memory, step.peer, self._tag + step.channel)
        self._leaving[step.place].append((step.span, work))

    def add(self, step: Add) -> None:
        _wait(self._arriving, step.into, step.span)
        _wait(self._arriving, step.source, step.span)
        # What is still being sent from `into` must not change under the transfer.
        _wait(self._leaving, step.into, step.span)
        self.memory(step.into, step.span).add_(self.memory(step.source, step.span))

    def finish(self) -> None:
        for transfers in (self._arriving, self._leaving):
            for place in transfers.values():
                while place:
                    place.pop(0)[1].wait()


def _wait(transfers: Transfers, place: int, span: Span) -> None:
    """Wait for the transfers of a place that touch the span, and forget them."""
    under_way = transfers.get(place)
    if not under_way:
        return
    begin, end = span
    touching = [work for (start, stop), work in under_way if start < end and begin < stop]
    if touching:
        transfers[place] = [item for item in under_way if item[0][0] >= end or begin >= item[0][1]]
        for work in touching:
            work.wait()
