"""The store at which the processes of a hosted program meet: torch's own, one for each generation.

Torch's store asks nobody for a credential. So it listens on the node's address inside the cluster alone, at a port that
is drawn anew for each generation, and is closed with that: a process of an earlier generation reaches none.
"""

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

FINISHED, NODE = "ringleader/finished", "ringleader/node"
CONNECT_S = 30.0


def open_store(host: str) -> tuple[str, TCPStore]:
    """A store that listens on that address of this machine, and its host:port."""
    # Bound here: left to itself it would listen on all addresses of the machine.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family)
    port = listening.getsockname()[1]
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return f"{host}:{port}", store


class GenerationStore:
    """One member's side of the store of its generation: on which nodes the members are, and whose programs have ended
    well. All raise RuntimeError where it cannot be reached."""

    def __init__(self, address: str, rank: int, world: int) -> None:
        host, _, port = address.rpartition(":")
        self._store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=CONNECT_S))
        self.rank, self._world = rank, world

    def say_node(self, node: str) -> None:
        self._store.set(f"{NODE}/{self.rank}", node)

    def nodes(self) -> list[str]:
        """The nodes of all members, by rank, once they have said."""
        return [self._store.get(f"{NODE}/{rank}").decode() for rank in range(self._world)]

    def finish(self) -> None:
        """Count this member in: its program has ended well."""
        self._store.add(FINISHED, 1)

    @property
    def all_finished(self) -> bool:
        # `get` would wait until the first member has finished.
        return bool(self._store.add(FINISHED, 0) >= self._world)

    def withdraw(self) -> bool:
        """Count this member out again; False where all are in."""
        # One atomic call: its answer also says whether all were in before it.
        if self._store.add(FINISHED, -1) + 1 < self._world:
            return True
        # Some may have left already because this one was in.
        self.finish()
        return False
