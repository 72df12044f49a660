"""A push on its way through a server's queue."""

from dataclasses import dataclass

from torch import Tensor

from ringleader.train.modes.async_server.lease_queue import PushVerdict
from ringleader.train.modes.async_server.messages import PushHeader
from ringleader.train.modes.async_server.server.endpoint import PushExtras


@dataclass(slots=True)
class QueuedPush:
    """A push from the worker of that rank, waiting to be counted; `verdict` is None until it is."""

    worker: int
    push: PushHeader
    rows: list[Tensor]
    extras: PushExtras
    verdict: PushVerdict | None = None

    def decide(self, verdict: PushVerdict) -> None:
        self.verdict = verdict
