"""Readings of the nodes of an attempt's workers: this node here, another one through a worker that is there."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from ringleader.runtime.nodes.node_process import is_here
from ringleader.runtime.nodes.node_use import NodeReading, read_node

ANSWER_S = 2.0


class WorkerUses:
    """Reads nodes.

    Args:
        ask: begins a worker's `WorkerActor.node_use` with these process ids; None where it has no process.
    """

    def __init__(self, ask: Callable[[str, list[int]], Any]) -> None:
        self._ask = ask
        self._silent: dict[str, int] = {}

    def read(self, asked: Mapping[str, Mapping[str, int]]) -> dict[str, NodeReading]:
        """The readings of nodes, by node; without those of which nothing came within `ANSWER_S`."""
        found: dict[str, NodeReading] = {}
        pending: dict[Any, str] = {}
        for node, pids in asked.items():
            if is_here(node):
                found[node] = read_node([*pids.values()])
                continue
            # After a silence another one is asked: the first may be frozen.
            worker = [*pids][self._silent.get(node, 0) % len(pids)]
            if (call := self._ask(worker, [*pids.values()])) is not None:
                pending[call] = node
        answered = ray.wait([*pending], num_returns=len(pending), timeout=ANSWER_S)[0] if pending else []
        for call in answered:
            with suppress(RayError):  # it has died since: silent as well
                found[pending[call]] = ray.get(call)
        for node in asked:
            self._silent[node] = 0 if node in found else self._silent.get(node, 0) + 1
        return found
