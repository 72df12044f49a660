"""The order of a gang's bundles: workers of consecutive ranks share a node, servers stand beside the workers."""

from collections.abc import Sequence
from itertools import chain, zip_longest


def seat(nodes: Sequence[str], workers: int, *, alike: bool = True) -> list[int]:
    """A bundle for each place: the workers' in the order of their ranks, then the servers', on each node in turn.

    Args:
        nodes: the node of each bundle.
        workers: how many of the bundles are for workers.
        alike: a server needs what a worker does, so that any bundle will do for it; else workers have the first ones.
    """
    order = list(dict.fromkeys(nodes))
    if alike:
        # In turn, so that no node gets two workers more than another one that has room.
        in_turn = _in_turn(nodes, range(len(nodes)))
        own, others = in_turn[:workers], in_turn[workers:]
    else:
        own, others = list(range(workers)), _in_turn(nodes, range(workers, len(nodes)))
    # The workers of a node hold consecutive ranks, so that what they sum among themselves is, where the shards allow
    # it, a node of the canonical tree, and a ring crosses each link once.
    return sorted(own, key=lambda b: (order.index(nodes[b]), b)) + others


def _in_turn(nodes: Sequence[str], bundles: Sequence[int]) -> list[int]:
    """These bundles, one of each node after the other."""
    on: dict[str, list[int]] = {}
    for bundle in bundles:
        on.setdefault(nodes[bundle], []).append(bundle)
    return [b for b in chain.from_iterable(zip_longest(*on.values())) if b is not None]
