"""Late links: every message comes, in order, and not before its time."""

import time

import torch

from ringleader.bench.exchange.late import LateTransport
from ringleader.comm.transports.inprocess import Hub


def test_messages_come_late_and_in_order_and_are_copied() -> None:
    hub = Hub(2)
    sender, receiver = LateTransport(hub.transport(0), 0.02), hub.transport(1)
    since = time.perf_counter()
    message = torch.zeros(3)
    for number in range(4):
        message.fill_(number)
        sender.isend(message, 1, 7).wait()
    found = []
    for _ in range(4):
        into = torch.empty(3)
        receiver.irecv(into, 0, 7).wait()
        found.append(into.tolist())
    assert time.perf_counter() - since >= 0.02
    assert found == [[float(number)] * 3 for number in range(4)]
    assert sender.messages == {7: 4}
    sender.close()
