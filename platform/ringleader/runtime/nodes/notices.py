"""Notices that a worker has to leave: SIGTERM to its process, and nodes that Ray drains."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

TERM_GRACE_S = 30.0
"""The customary time between SIGTERM and SIGKILL; also that of a node that drains without a deadline."""


def on_sigterm(act: Callable[[], None]) -> None:
    """Have each SIGTERM run `act` on a thread of its own. Does nothing on any but the process's main thread."""
    if threading.current_thread() is not threading.main_thread():
        return  # only that one may; SIGTERM ends the process as before
    read, write = os.pipe()
    # The interpreter writes in the signal handler itself, where nothing may block.
    os.set_blocking(write, False)
    # In place of Ray's own handler, which ends the process. The interpreter writes into the pipe only for signals with
    # a handler in Python.
    signal.signal(signal.SIGTERM, _heard)
    # Not left to that handler: it would run on the main thread, which is Ray's. The signal's number comes into the pipe
    # at once, wherever that thread is.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # Forked children, those that load batches, are ended by SIGTERM as ever, and do not share the pipe.
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_as_usual)
    threading.Thread(target=_listen, args=(read, act), name="sigterm", daemon=True).start()


def _heard(_sign: int, _frame: Any) -> None:
    """Do nothing: the pipe tells."""


def _hold() -> None:
    """Hold SIGTERM back over a fork."""
    # A child that gets it before it has let go of the pipe would tell its parent.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _as_usual() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release()


def _listen(read: int, act: Callable[[], None]) -> None:
    while signs := os.read(read, 64):
        if signal.SIGTERM in signs:
            act()


def draining_nodes() -> dict[str, float]:
    """The nodes that Ray drains, each with the seconds that it has left."""
    import ray

    found: Mapping[str, int] = ray._private.state.state.get_draining_nodes()
    now = time.time()
    return {node: at / 1000 - now if at else TERM_GRACE_S for node, at in found.items()}


class DrainNotices:
    """The record of workers that have been told that their node is drained: each once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def news(self, draining: Mapping[str, float], nodes: Mapping[str, str]) -> list[tuple[str, float]]:
        """(worker, seconds) for those of `nodes` (worker → node) that have not been told yet."""
        found = [(worker, draining[node]) for worker, node in nodes.items() if node in draining]
        return [(worker, for_s) for worker, for_s in found if worker not in self._told]

    def tell(self, news: Iterable[tuple[str, float]], drain: Callable[[str, float], None]) -> None:
        """Call `drain(worker, seconds)` for each; a worker that it could not reach is among the next news."""
        for worker, for_s in news:
            with suppress(Exception):  # of one worker: the others have to hear as well
                drain(worker, for_s)
                self._told.add(worker)
