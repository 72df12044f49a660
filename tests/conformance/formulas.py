"""What each schedule sends, by the text that it cites: elements that rank r of P sends of a bucket of S, where every
rank holds one row. Written down beside the schedules and not from them; S is divisible by all that occurs."""

from collections.abc import Callable

Nodes = tuple[tuple[int, ...], ...]
Formula = Callable[[int, int, int, Nodes], int]
"""(r, P, S, the ranks of each node)"""


def scattered_and_gathered(_: int, world: int, length: int, __: Nodes) -> int:
    """2(P-1)/P·S: each of P spans but the own one, once as partial sums and once as results. Patarasuk and Yuan 2009,
    of the ring; an owner of each span that collects and hands out sends as much."""
    return 2 * (world - 1) * length // world


def everyone_to_everyone(_: int, world: int, length: int, __: Nodes) -> int:
    """(P-1)·S: the whole bucket to each of the others."""
    return (world - 1) * length


def halving_doubling(rank: int, world: int, length: int, _: Nodes) -> int:
    """Among 2^k <= P members 2(1 - 1/2^k)·S. Of the first P - 2^k pairs of neighbours the odd one hands its bucket to
    the even one, which hands the result back: S each. Thakur, Rabenseifner and Gropp 2005, section 4.5."""
    members, paired = power_below(world)
    if rank < 2 * paired and rank % 2:
        return length
    return 2 * (members - 1) * length // members + (length if rank < 2 * paired else 0)


def doubling(rank: int, world: int, length: int, _: Nodes) -> int:
    """k·S among 2^k members, and the pairs as in halving and doubling. The same section."""
    members, paired = power_below(world)
    if rank < 2 * paired and rank % 2:
        return length
    return (members.bit_length() - 1) * length + (length if rank < 2 * paired else 0)


def binary_blocks(rank: int, world: int, length: int, _: Nodes) -> int:
    """In the block of B ranks, one block a binary digit of P: 2(1 - 1/B)·S inside, S/B up to the next larger block,
    S/B down to the next smaller one. Rabenseifner 2004."""
    start, sizes = 0, [1 << bit for bit in reversed(range(world.bit_length())) if world >> bit & 1]
    for number, size in enumerate(sizes):
        if rank < start + size:
            neighbours = (number > 0) + (number + 1 < len(sizes))
            return 2 * (size - 1) * length // size + neighbours * length // size
        start += size
    raise AssertionError(f"rank {rank} of {world} is in no block")


def tree(rank: int, world: int, length: int, _: Nodes) -> int:
    """S to the parent, rank 0 has none, and S to each child. The children of r in a binomial tree are r + 2^j for all
    2^j below r's lowest bit. Thakur, Rabenseifner and Gropp 2005, the binomial trees of reduce and broadcast."""
    lowest = rank & -rank or world
    children = sum(1 for j in range(world.bit_length()) if 1 << j < lowest and rank + (1 << j) < world)
    return ((rank > 0) + children) * length


def double_tree(rank: int, world: int, length: int, _: Nodes) -> int:
    """S/2 in each of two trees to the parent and to each child. Place 0 is the root, with one child; odd places are
    leaves; even ones have a child before them, and one behind them unless they are the last. In the second tree a rank
    stands at place P-1-r where P is even, at r-1 (modulo P) where it is odd. Sanders, Speck and Träff 2009."""

    def messages(place: int) -> int:
        if world == 1:
            return 0
        return 1 if place == 0 or place % 2 else 2 + (place + 1 < world)

    second = world - 1 - rank if world % 2 == 0 else (rank - 1) % world
    return (messages(rank) + messages(second)) * length // 2


def two_level(rank: int, world: int, length: int, nodes: Nodes) -> int:
    """With N nodes of at least K ranks there are K lanes of S/K. Inside its node, of g ranks, the k-th rank gives the
    others' lanes away and its own lane's result to all; with the k-th ranks of the others it sums the lane as an owner
    of 1/N of it: S - S/K + 2(N-1)/N·S/K + (g-1)·S/K. Ranks behind the K-th give all lanes away: S. Cho et al. 2019."""
    nodes = nodes or (tuple(range(world)),)
    lanes = min(map(len, nodes))
    (mine,) = (ranks for ranks in nodes if rank in ranks)
    if mine.index(rank) >= lanes:
        return length
    lane = length // lanes
    return length - lane + 2 * (len(nodes) - 1) * lane // len(nodes) + (len(mine) - 1) * lane


FORMULAS: dict[str, Formula] = {
    "binary_blocks": binary_blocks,
    "direct": scattered_and_gathered,
    "double_tree": double_tree,
    "doubling": doubling,
    "gather": everyone_to_everyone,
    "halving_doubling": halving_doubling,
    "ring": scattered_and_gathered,
    "tree": tree,
    "two_level": two_level,
}


def power_below(world: int) -> tuple[int, int]:
    """2^k <= P, and how many ranks are left over."""
    members = 1 << (world.bit_length() - 1)
    return members, world - members
