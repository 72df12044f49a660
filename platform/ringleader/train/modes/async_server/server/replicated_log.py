"""The log of items that are applied on all servers or on none: a server holds a push until server 0 has taken its item.

Where servers have backups server 0 waits too: whatever it takes, and each update of a clock, is an entry that all
others have heard of before server 0 acts on it, and says the next. So all make the same updates of the same items in
the same order, none has heard of more than one entry that another lacks, and what server 0 did is known without it.
"""

from collections import deque
from collections.abc import Sequence

import torch

from ringleader.exchange import Exchange
from ringleader.train.modes.async_server.server.endpoint import QueuedPush
from ringleader.train.modes.items import ItemSet


class ReplicatedLog:
    """One server's log. Outlives generations; any thread may call `confirm`.

    Attributes:
        count: entries that this server has heard of in this loop.
        last: the newest one: an item, `UPDATE` or `CLOSE`.
    """

    def __init__(self, count: int = 0, last: int = 0) -> None:
        self.count, self.last = count, last
        self._held: dict[int, QueuedPush] = {}
        self._confirmed: deque[int] = deque()

    @property
    def items(self) -> list[int]:
        """The items that are held."""
        return list(self._held)

    def hold(self, arrival: QueuedPush) -> QueuedPush | None:
        """Keep a push. Of two pushes of one item, as backup workers make them, server 0 takes the one on newer weights;
        the other one is returned."""
        other = self._held.get(arrival.push.item)
        if other is not None and other.push.version > arrival.push.version:
            return arrival
        self._held[arrival.push.item] = arrival
        return other

    def confirm(self, entry: int) -> None:
        """Record an entry of server 0: an item that it has taken, `UPDATE` or `CLOSE`."""
        self.count, self.last = self.count + 1, entry
        self._confirmed.append(entry)

    def due(self) -> list[tuple[int, QueuedPush | None]]:
        """Entries not yet applied, in server 0's order, each with its push, which is held no longer."""
        due = []
        while self._confirmed:
            entry = self._confirmed.popleft()
            # `UPDATE` and `CLOSE` are negative, and have no push.
            due.append((entry, self._held.pop(entry) if entry >= 0 else None))
        return due

    def settle(self, taken: Sequence[int]) -> list[QueuedPush]:
        """Begin a generation: of all that is held server 0 has taken these items, which are due. The rest is returned,
        and held no longer."""
        # What was heard before the break stands in server 0's order, and in front: of the rest it was not heard.
        known = dict.fromkeys([*self._confirmed, *self._held])
        self._confirmed = deque(item for item in known if item in taken and item in self._held)
        return [self._held.pop(item) for item in self.items if item not in taken]


def agree(exchange: Exchange, server: int, servers: int, held: Sequence[int], taken: ItemSet) -> list[int]:
    """Ask server 0, with all members, which of the items that any server holds it has taken. Raises ExchangeBroken.

    Args:
        server: the number of this server; negative on workers.
        taken: what server 0 has taken; nothing on all others.
    """
    # How many each server holds comes first: it says at which offset each writes its items in the next sum.
    counts = torch.zeros(servers, dtype=torch.float64)
    if server >= 0:
        counts[server] = len(held)
    ends = exchange.all_reduce(counts).cumsum(0).int().tolist()
    if not ends[-1]:
        return []
    items = torch.zeros(ends[-1], dtype=torch.float64)
    if server >= 0:
        items[ends[server] - len(held) : ends[server]] = torch.tensor(held, dtype=torch.float64)
    known = [int(item) for item in exchange.all_reduce(items).tolist()]
    said = torch.tensor([item in taken for item in known], dtype=torch.float64)
    return [item for item, yes in zip(known, exchange.all_reduce(said).tolist(), strict=True) if yes]


def newest_entry(
    exchange: Exchange, server: int, servers: int, known: tuple[int, int, int]
) -> tuple[int, int, int]:
    """The entry of the server that has heard of the most, heard by all members. Raises ExchangeBroken.

    Args:
        server: the number of this server; negative on workers.
        known: the loop's call number, entries, the newest one; (-1, 0, 0) where there is no loop.
    """
    said = torch.zeros((servers, 3), dtype=torch.float64)
    if server >= 0:
        said[server] = torch.tensor(known, dtype=torch.float64)
    # Ordered by call, then count: a server that is still in an earlier loop has heard of nothing here.
    call, count, last = max(exchange.all_reduce(said.view(-1)).view(servers, 3).tolist())
    return int(call), int(count), int(last)
