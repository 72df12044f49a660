"""A server's queue over a break: what was not counted is nobody's, and its memory is used again."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from waiting import wait_for

from ringleader.comm.buckets import Bucket
from ringleader.errors import ExchangeBroken
from ringleader.train.modes.async_server.messages import MessageLayout
from ringleader.train.modes.async_server.server.endpoint import PushExtras, ReceiveBuffers
from ringleader.train.modes.async_server.server.server_queue import ServerQueue
from ringleader.train.modes.async_server.server.server_state import ServerSeat


class State:
    """Counts nothing."""

    published_weights = SimpleNamespace(came=lambda counts: None)

    def __init__(self) -> None:
        self.counted: list[Any] = []

    def open(self, *args: Any, **kwargs: Any) -> None:
        pass

    def count(self, arrival: Any) -> None:
        self.counted.append(arrival)


def test_a_push_that_a_break_left_uncounted_is_dropped_and_its_memory_is_used_again() -> None:
    """Its worker gets no receipt, and so has not gone on to the server that says what is taken."""
    state, broken = State(), threading.Event()
    queue = ServerQueue(SimpleNamespace(), state)  # type: ignore[arg-type]
    buffers = ReceiveBuffers([Bucket(0, (0,), (0, 4), torch.empty(0))])
    push = MessageLayout(parameters=1, blocks=0, buffers=0).leaving()
    rows, receipts = buffers.take(), []

    def check() -> None:
        if broken.is_set():
            raise ExchangeBroken(rank=0, phase="push", bucket=None, why="a test")

    def take() -> None:
        with pytest.raises(ExchangeBroken):
            receipts.append(queue.take(0, push, rows, PushExtras(None, None), check))

    thread = threading.Thread(target=take)
    thread.start()
    wait_for("arrival", lambda: len(queue._arrivals) == 1)
    broken.set()
    thread.join(5)
    assert not thread.is_alive()
    queue.open(ServerSeat(None, buffers, None, None, leads=True))  # type: ignore[arg-type]
    assert (state.counted, receipts) == ([], [])
    assert buffers.take()[0] is rows[0]
