"""Runs the steps of a schedule on tensors over a transport."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ringleader.comm.schedules.schedule import Add, Receive, Send, Span, Step, Zero, size
from ringleader.comm.transports.transport import Transport, Work

Where = tuple[int, Span]


class Scratch:
    """Slots for chunks on their way, reused from bucket to bucket by one thread."""

    def __init__(self) -> None:
        self._slots: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    def slot(self, number: int, elements: int, like: Tensor) -> Tensor:
        """(elements,) of the dtype and device of `like`; its content is what a step left there."""
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
    """The transfers under way: a step waits for those that touch the same place and span."""

    def __init__(self, rows: Sequence[Tensor], scratch: Scratch, transport: Transport, tag: int) -> None:
        self._rows = rows
        self._scratch = scratch
        self._transport = transport
        self._tag = tag
        self._arriving: dict[Where, Work] = {}
        self._leaving: dict[Where, list[Work]] = defaultdict(list)

    def memory(self, place: int, span: Span) -> Tensor:
        if place >= 0:
            return self._rows[place][span[0] : span[1]]
        return self._scratch.slot(-1 - place, size(span), like=self._rows[0])

    def receive(self, step: Receive) -> None:
        memory = self.memory(step.place, step.span)
        work = self._transport.irecv(memory, step.peer, self._tag + step.channel)
        self._arriving[step.place, step.span] = work

    def send(self, step: Send) -> None:
        self._arrived(step.place, step.span)
        memory = self.memory(step.place, step.span)
        work = self._transport.isend(memory, step.peer, self._tag + step.channel)
        self._leaving[step.place, step.span].append(work)

    def add(self, step: Add) -> None:
        self._arrived(step.into, step.span)
        self._arrived(step.source, step.span)
        for work in self._leaving.pop((step.into, step.span), ()):
            work.wait()
        self.memory(step.into, step.span).add_(self.memory(step.source, step.span))

    def finish(self) -> None:
        while self._arriving:
            self._arriving.pop(next(iter(self._arriving))).wait()
        for works in self._leaving.values():
            while works:
                works.pop(0).wait()

    def _arrived(self, place: int, span: Span) -> None:
        work = self._arriving.pop((place, span), None)
        if work is not None:
            work.wait()
