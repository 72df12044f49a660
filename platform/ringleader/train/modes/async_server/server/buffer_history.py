"""The committed buffers of a loop whose items are leased, kept as long as a worker may have started from them."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class BufferMove:
    """The change that a slice made to the buffers: (bytes,) uint8 before and after its forward."""

    start: Tensor
    left: Tensor


class BufferHistory:
    """The buffers that each version of the weights came with. A version is a number of updates; a loop begins with 0.

    Args:
        committed: (bytes,) uint8 at the loop's start.
    """

    def __init__(self, committed: Tensor) -> None:
        self._since = {0: committed}

    def at(self, version: int) -> Tensor:
        """(bytes,) uint8 that went with that version; for a forgotten one the oldest that is known."""
        return self._since[max((v for v in self._since if v <= version), default=min(self._since))]

    def committed(self, committed: Tensor, version: int, leased_versions: Iterable[int]) -> None:
        """Set the buffers from that version on.

        Args:
            leased_versions: the versions that are still computed on; buffers that nobody can ask for any more are
                forgotten.
        """
        self._since[version] = committed
        kept = {
            max((v for v in self._since if v <= held), default=version)
            for held in (*leased_versions, version)
        }
        self._since = {v: kept_bytes for v, kept_bytes in self._since.items() if v in kept}
