"""A transport whose messages arrive late, as over a long line: only their receivers wait for them."""

import queue
import threading
import time
from collections import Counter

from torch import Tensor

from ringleader.comm.transports import SharedSums, Transport
from ringleader.comm.transports.transport import Work


class _Sent:
    """The handle of a message that was copied: its sender may go on."""

    def wait(self) -> None: ...


class LateTransport:
    """Every message starts `delay_s` after it was sent; those of one member stay in order. Implements Transport.

    Attributes:
        messages: how many were sent, by tag.
    """

    # Sums in place exchange no messages that could be late, so there is no board either.
    shared = False
    together = None

    def __init__(self, inner: Transport, delay_s: float) -> None:
        self.rank, self.size, self.groups = inner.rank, inner.size, inner.groups
        self.seal = inner.seal
        self.messages: Counter[int] = Counter()
        self._inner = inner
        self._delay_s = delay_s
        self._line: queue.SimpleQueue[tuple[float, Tensor, int, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry, name="late", daemon=True)
        self._thread.start()

    @property
    def over(self) -> str:
        return self._inner.over

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        self.messages[tag] += 1
        if not self._delay_s:
            return self._inner.isend(tensor, peer, tag)
        # A copy: the sender may write into its tensor long before this one leaves.
        self._line.put((time.perf_counter() + self._delay_s, tensor.clone(), peer, tag))
        return _Sent()

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._inner.irecv(tensor, peer, tag)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        return self._inner.native_all_reduce(tensor)

    def board(self, slots: int, rows: int) -> SharedSums | None:
        return None

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._line.put(None)
        self._thread.join()
        self._inner.close()

    def _carry(self) -> None:
        while (message := self._line.get()) is not None:
            due, tensor, peer, tag = message
            time.sleep(max(0.0, due - time.perf_counter()))
            self._inner.isend(tensor, peer, tag).wait()
