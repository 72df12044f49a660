"""The cluster as if it were empty: what it holds at most, and which gangs can ever run on it."""

from collections import Counter
from collections.abc import Sequence

from ringleader_api.scheduling.needs import NodeShape, WorkerNeed, place, room
from ringleader_api.scheduling.room import FreeRoom, together
from ringleader_api.scheduling.snapshot import Apart, Claim


def fits(nodes: Sequence[NodeShape], claim: Claim) -> bool:
    """Whether the job's gang would fit on the cluster if it were empty."""
    return together(FreeRoom(nodes), claim.need, claim.gang, claim.apart) is not None


def most(nodes: Sequence[NodeShape], need: WorkerNeed) -> int:
    """The number of such workers that the empty cluster holds."""
    # More than any cluster holds, so that only its room bounds the answer.
    return place(nodes, need, 1 << 20)[0]


class EmptyCluster:
    """The same answers for many jobs: each shape of worker, and each gang of two shapes, is counted once."""

    def __init__(self, nodes: Sequence[NodeShape]) -> None:
        self._nodes = nodes
        # Kinds of node with their number: a large cluster has few, and an empty one is counted by kind.
        self._kinds = Counter((n.cpus, n.gpus, n.memory_gb) for n in nodes)
        self._most: dict[WorkerNeed, int] = {}
        self._fit: dict[tuple[WorkerNeed, int, Apart | None], bool] = {}

    def fits(self, claim: Claim) -> bool:
        """Whether the job's gang would fit."""
        # Cheap, and decides unless the gang has a second shape: only that has to be placed to know.
        workers_fit = self.most(claim.need) >= claim.gang
        if claim.apart is None or not workers_fit:
            return workers_fit
        shape = claim.need, claim.gang, claim.apart
        if shape not in self._fit:
            self._fit[shape] = fits(self._nodes, claim)
        return self._fit[shape]

    def most(self, need: WorkerNeed) -> int:
        """The number of such workers that it holds."""
        if need not in self._most:
            self._most[need] = sum(
                number * room(NodeShape("", *kind), need) for kind, number in self._kinds.items()
            )
        return self._most[need]
