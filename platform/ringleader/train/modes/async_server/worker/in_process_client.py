"""A worker that is its own server: requests and pushes go to the server queue of its own process."""

from collections.abc import Sequence

from torch import Tensor

from ringleader.comm.buckets import Buckets
from ringleader.comm.rows import SparseRows
from ringleader.train.modes.async_server.messages import PullReply, PullRequest, PushHeader, RequestKind
from ringleader.train.modes.async_server.server.endpoint import PushExtras, ReceiveBuffers
from ringleader.train.modes.async_server.server.server_queue import ServerQueue


class InProcessClient:
    """A worker's client of the server queue in its own process. Stands in for a ServerClient."""

    def __init__(self, server_queue: ServerQueue, buckets: Buckets, rows: ReceiveBuffers) -> None:
        self._server_queue = server_queue
        self._buckets = buckets
        self._rows = rows

    @property
    def have(self) -> tuple[int, ...]:
        return (self._server_queue.state.leases.version,)

    def ask(self, wish: RequestKind, stop: int = -1) -> PullReply:
        ask = PullRequest(wish, self._server_queue.state.leases.version, stop=stop)
        return self._server_queue.answer(0, ask, [], _go_on).answer

    def take_over(self) -> None:
        """Do nothing: the newest weights are here."""

    def push(
        self,
        push: PushHeader,
        versions: Sequence[int],
        extras: Sequence[Tensor],
        tables: Sequence[SparseRows],
    ) -> None:
        # A copy: the next backward writes into the buckets while this gradient may wait for its update.
        rows = self._rows.take()
        for row, bucket in zip(rows, self._buckets.buckets, strict=True):
            row.copy_(bucket.row(0))
        waiting = list(extras)
        # From the end: names come behind the buffers.
        names = waiting.pop() if push.names else None
        self._server_queue.count(
            push, rows, PushExtras(waiting.pop() if push.buffers else None, names, tables)
        )

    def pushed(self) -> None:
        """Do nothing: a push is counted when `push` returns."""

    def leave(self) -> None:
        self._server_queue.state.close()


def _go_on() -> None:
    """Check nothing: a generation of one cannot break."""
