"""Items that are applied on all servers or on none: the others hold what they got until server 0 has taken it."""

from collections import deque
from collections.abc import Sequence

import torch

from ringleader.elastic.items import Items
from ringleader.sync import Exchange
from ringleader.train.arrivals import Arrival


class Staging:
    """A server's that does not keep the queue. Outlives generations; `confirm` belongs to any thread."""

    def __init__(self) -> None:
        self._held: dict[int, Arrival] = {}
        self._confirmed: deque[int] = deque()

    @property
    def items(self) -> list[int]:
        """Those that are held."""
        return list(self._held)

    def hold(self, arrival: Arrival) -> bool:
        """Keep a push; False where its item is held already."""
        if arrival.push.item in self._held:
            return False
        self._held[arrival.push.item] = arrival
        return True

    def confirm(self, item: int) -> None:
        """Server 0 has taken the item."""
        self._confirmed.append(item)

    def due(self) -> list[Arrival]:
        """Those that server 0 has taken, in its order; they are held no longer."""
        due = []
        while self._confirmed:
            due.append(self._held.pop(self._confirmed.popleft()))
        return due

    def settle(self, taken: Sequence[int]) -> list[Arrival]:
        """A generation begins: of all that is held server 0 has taken these, which are due. The rest is returned, and
        held no longer."""
        self._confirmed = deque(item for item in self._held if item in taken)
        return [self._held.pop(item) for item in self.items if item not in taken]


def agree(exchange: Exchange, server: int, servers: int, held: Sequence[int], taken: Items) -> list[int]:
    """All members ask server 0 which of the items that any server holds it has taken. Raises ExchangeBroken.

    Args:
        server: the number of this server; negative on workers.
        taken: what server 0 has taken; nothing on all others.
    """
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
