"""The actor that holds the stores of an attempt, beside the supervisor and never in a worker, and the supervisor's side
of it."""

import os
import threading
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from ringleader.runtime.messages import AWAY_S, NAMESPACE
from ringleader.runtime.supervisor.placement import here

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOK_S = 2.0
START_S = 60.0
"""The longest that a process which imports torch takes to start, on an overloaded machine."""


class TorchStoreActor:
    """A detached actor with the store of the present generation, and one that waits for the next. Ends itself when the
    supervisor is gone for good."""

    def __init__(self, supervisor: str) -> None:
        # Only here: it needs torch, and the supervisor, which imports this module, starts without.
        from ringleader.runtime.hosted.store import open_store

        self._open = partial(open_store, ray.util.get_node_ip_address())
        self._lock = threading.Lock()
        self._current: TCPStore | None = None
        # Ahead of its generation, which then does not wait for it.
        self._next = self._open()
        threading.Thread(target=self._watch, args=(supervisor,), name="watch", daemon=True).start()

    def take(self) -> str:
        """Close the present store. Returns the host:port of a new one, where nobody has been."""
        with self._lock:
            address, self._current = self._next
            self._next = self._open()
            return address

    def _watch(self, supervisor: str) -> None:
        heard, pause = monotonic(), threading.Event()
        while monotonic() - heard < AWAY_S:
            pause.wait(LOOK_S)
            with suppress(ValueError, RayError):  # it is gone, or Ray cannot say
                ray.get_actor(supervisor, namespace=NAMESPACE)
                heard = monotonic()
        os._exit(0)


class TorchStores:
    """The supervisor's side of the stores of its attempt.

    Args:
        supervisor: the name of its actor.
    """

    def __init__(self, supervisor: str) -> None:
        self._supervisor = supervisor
        self._actor = self._begin()

    def take(self) -> str:
        """The host:port of the store of a generation that begins, where nobody has been."""
        with suppress(RayError):
            return str(ray.get(self._actor.take.remote(), timeout=START_S))
        self.close()
        self._actor = self._begin()
        return str(ray.get(self._actor.take.remote(), timeout=START_S))

    def close(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor)

    def _begin(self) -> Any:
        return (
            ray.remote(TorchStoreActor)
            .options(
                name=f"{self._supervisor}-store",
                namespace=NAMESPACE,
                # It outlives a supervisor that is killed and comes back, which finds it by its name.
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=here(soft=True),
            )
            .remote(self._supervisor)
        )
