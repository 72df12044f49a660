"""A push on its way through a server's office."""

from dataclasses import dataclass

from torch import Tensor

from ringleader.elastic.leases import Verdict
from ringleader.sync.errands import Push
from ringleader.sync.lessor import Extras


@dataclass(slots=True)
class Arrival:
    """A push of the worker of that rank that waits to be counted; `verdict` is None until it is."""

    worker: int
    push: Push
    rows: list[Tensor]
    extras: Extras
    verdict: Verdict | None = None
