"""The assignment of the state's parts to servers: to each its own, and as a backup those of the servers before it.

Parts and slots are numbered alike, 0..n-1, for the job's life. A server has one slot; its replacement takes that slot.
Part p is held by slots p, p+1, ..., p+b modulo n: the first of them that is there publishes it, the others update it
too, from the same sum.
"""

from collections.abc import Collection, Sequence


def slots_of(part: int, parts: int, backups: int) -> tuple[int, ...]:
    """The slots that hold a part, first the one that owns it."""
    return tuple((part + k) % parts for k in range(min(parts, backups + 1)))


def parts_of(slot: int, parts: int, backups: int) -> tuple[int, ...]:
    """The parts that a slot holds, first its own."""
    return tuple((slot - k) % parts for k in range(min(parts, backups + 1)))


def holders(slots: Sequence[int], parts: int, backups: int) -> tuple[tuple[int, ...], ...]:
    """The servers that hold each part, by part, as numbers into `slots`, first the one that publishes it."""
    place = {slot: number for number, slot in enumerate(slots)}
    return tuple(
        tuple(place[s] for s in slots_of(part, parts, backups) if s in place) for part in range(parts)
    )


def gifts(
    held_by: Sequence[Sequence[int]], without: Collection[int]
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """The parts that servers new to their slots get from the others: (receiver, donor, parts), in one order for all.

    Args:
        held_by: for each part the servers that are to hold it; none where servers have left behind the last barrier.
        without: servers that hold nothing yet.

    Raises:
        ValueError: nobody holds a part.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for part, servers in enumerate(held_by):
        donors = [server for server in servers if server not in without]
        if servers and not donors:
            raise ValueError(f"no server holds part {part} of the optimizer's state")
        for server in servers:
            if server in without:
                # The first in order, for all members alike: receiver and donor meet without asking.
                found.setdefault((server, donors[0]), []).append(part)
    return tuple((*pair, tuple(parts)) for pair, parts in sorted(found.items()))
