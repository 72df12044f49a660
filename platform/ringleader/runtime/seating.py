"""Which bundle of a gang is whose: workers that follow one another share a node, servers stand beside the workers."""

from collections.abc import Sequence
from itertools import chain, zip_longest


def seat(nodes: Sequence[str], workers: int) -> list[int]:
    """A bundle for each place: the workers' in the order of their ranks, then the servers'.

    The workers of a node hold consecutive ranks, so that what they sum among themselves is, where the shards allow it,
    a node of the canonical tree, and a ring crosses each link once. Servers take a bundle on each node in turn.

    Args:
        nodes: the node of each bundle.
        workers: how many of the bundles are for workers.
    """
    on: dict[str, list[int]] = {}
    for bundle, node in enumerate(nodes):
        on.setdefault(node, []).append(bundle)
    in_turn = [b for b in chain.from_iterable(zip_longest(*on.values())) if b is not None]
    order = list(on)
    return sorted(in_turn[:workers], key=lambda b: (order.index(nodes[b]), b)) + in_turn[workers:]
