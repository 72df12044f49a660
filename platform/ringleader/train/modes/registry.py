"""The modes of synchronizing. To add one, write its folder and name it here."""

from ringleader.spec.sync import Sync
from ringleader.train.modes.async_server.loop import AsyncServerLoop
from ringleader.train.modes.local_sgd.loop import LocalSgdLoop
from ringleader.train.modes.mode import Mode
from ringleader.train.modes.synchronous.loop import SynchronousLoop
from ringleader.train.modes.token_ring.loop import TokenRingLoop

MODES: dict[str, type[Mode]] = {
    "synchronous": SynchronousLoop,
    "local_sgd": LocalSgdLoop,
    "async_server": AsyncServerLoop,
    "token_ring": TokenRingLoop,
}
"""By the folder's name: the unit of commit is a batch, a round of several, a leased item, or a slice in a span of the
weights."""


def mode_of(sync: Sync) -> type[Mode]:
    """The mode of a job."""
    return MODES[sync.mode]
