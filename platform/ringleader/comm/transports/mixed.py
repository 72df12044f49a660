"""The transport across nodes: shared memory between members of one node, gloo between nodes, chosen pair by pair."""

from torch import Tensor

from ringleader.comm.transports.gloo import GlooTransport
from ringleader.comm.transports.shared import SharedTransport
from ringleader.comm.transports.transport import Work


class MixedTransport:
    """One member's end of one generation. Implements Transport.

    Args:
        near: attached to the members of this node.
        far: connected to all members.
        groups: the ranks of each node.
    """

    shared = False
    together = None

    def __init__(
        self, near: SharedTransport, far: GlooTransport, groups: tuple[tuple[int, ...], ...]
    ) -> None:
        self.rank = far.rank
        self.size = far.size
        self.seal = far.seal
        self.groups = groups
        self._near = near
        self._far = far
        self._here = next(group for group in groups if far.rank in group)

    @property
    def over(self) -> str:
        return self._far.over

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._to(peer).isend(tensor, peer, tag)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._to(peer).irecv(tensor, peer, tag)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        # Only gloo has a collective of its own, and it is connected to the members of this node as well.
        return self._far.native_all_reduce(tensor)

    def board(self, slots: int, rows: int) -> None:
        return None

    def abort(self) -> None:
        self._near.abort()
        self._far.abort()

    def close(self) -> None:
        self._near.close()
        self._far.close()

    def _to(self, peer: int) -> SharedTransport | GlooTransport:
        return self._near if peer in self._here else self._far
