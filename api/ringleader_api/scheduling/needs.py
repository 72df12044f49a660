"""Room on nodes: which workers fit where. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

SLACK = 1e-9
"""Resources are floats: 0.1 + 0.2 must still fit into 0.3."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The resources of a node: its total, or the free part."""

    id: str
    cpus: float
    gpus: float
    memory_gb: float

    def without(self, taken: "WorkerNeed | None") -> "NodeShape":
        """The rest of it without what is `taken`."""
        if taken is None:
            return self
        return NodeShape(
            self.id, self.cpus - taken.cpus, self.gpus - taken.gpus, self.memory_gb - taken.memory_gb
        )


@dataclass(frozen=True, slots=True)
class WorkerNeed:
    """The resources of one worker."""

    cpus: float
    gpus: float
    memory_gb: float

    def __str__(self) -> str:
        parts = [count_of(self.cpus, "CPU")]
        if self.gpus:
            parts.append(count_of(self.gpus, "GPU"))
        if self.memory_gb:
            parts.append(f"{self.memory_gb:g} GB")
        return ", ".join(parts)


def count_of(number: float, noun: str) -> str:
    """The number with its noun, which is in the singular for one."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def place(nodes: Sequence[NodeShape], need: WorkerNeed, count: int) -> tuple[int, tuple[NodeShape, ...]]:
    """Place up to `count` workers on the nodes, first fit.

    Returns:
        How many found a place, and the nodes with what is left on them.
    """
    placed = 0
    left: list[NodeShape] = []
    for node in nodes:
        here = min(room(node, need), count - placed)
        placed += here
        left.append(
            NodeShape(
                node.id,
                node.cpus - here * need.cpus,
                node.gpus - here * need.gpus,
                node.memory_gb - here * need.memory_gb,
            )
        )
    return placed, tuple(left)


def room(node: NodeShape, need: WorkerNeed) -> int:
    """The number of such workers that fit on one node; a worker that needs nothing fits any number of times."""
    pairs = ((node.cpus, need.cpus), (node.gpus, need.gpus), (node.memory_gb, need.memory_gb))
    return max(0, min((int((has + SLACK) // needs) for has, needs in pairs if needs > 0), default=1 << 30))


def loss(taken: WorkerNeed, need: WorkerNeed) -> int:
    """The most workers of one shape that no longer fit once a worker of another has been put on their node."""
    pairs = ((taken.cpus, need.cpus), (taken.gpus, need.gpus), (taken.memory_gb, need.memory_gb))
    # Less the slack: a worker of 0.1 + 0.2 takes the place of one of 0.3, not of two.
    return max((ceil(takes / needs - SLACK) for takes, needs in pairs if needs > 0), default=0)
